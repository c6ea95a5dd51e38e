"""The memory of parked sessions: until they expire, and in numbers that do not grow without bound."""

from __future__ import annotations

from tests.support.clock import FakeClock
from tests.support.plain_states import State
from ts_stateful.sessions.places import ParkedSessions
from ts_stateful.sessions.session import Session


def session(name: str, clock: FakeClock, owner: str | None = None) -> Session[State]:
    """Return a session that was used now, is idle for 60 s and lives for 600 s."""
    now = clock.now
    return Session(name, State(), now, now + 600, 60.0, now, owner=owner)


def test_a_session_is_known_until_it_is_idle_for_too_long() -> None:
    """After that the store decides; it still has the session, which counts."""
    clock = FakeClock()
    parked = ParkedSessions(clock)
    parked.add(session("a", clock))
    clock.now += 59
    assert "a" in parked
    clock.now += 1
    assert "a" not in parked
    assert not parked.has_room(None, 1)
    clock.now += 540
    assert parked.has_room(None, 1)


def test_counts_are_by_owner_and_return_to_zero() -> None:
    """A session that is parked twice counts once; a forgotten one does not count."""
    clock = FakeClock()
    parked = ParkedSessions(clock)
    for name, owner in (("a", "x"), ("a", "x"), ("b", "y")):
        parked.add(session(name, clock, owner))
    assert [parked.has_room(owner, 1) for owner in ("x", "y", None)] == [False, False, True]
    for name in ("a", "a", "b", "never"):
        parked.forget(name)
    assert parked.has_room("x", 1)
    assert not parked._counts


def test_expired_ones_are_dropped() -> None:
    """Also those of owners that never reach a limit."""
    clock = FakeClock()
    parked = ParkedSessions(clock)
    for number in range(5000):
        parked.add(session(f"s{number}", clock, f"owner-{number}"))
        clock.now += 10
    assert len(parked._parked) <= 1000 + 2 * 60
    assert parked._counts.total() == len(parked._parked)
