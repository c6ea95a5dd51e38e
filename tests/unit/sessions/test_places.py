"""Places of a table: which session leaves for another one, and when there is none."""

from __future__ import annotations

import weakref

import pytest

from tests.support.clock import FakeClock
from tests.support.plain_states import State, table
from ts_stateful.protocol.errors import QuotaExceeded, SessionNotFound, TooManySessions
from ts_stateful.sessions.places import Parking
from ts_stateful.sessions.session import Session
from ts_stateful.sessions.table import SessionTable


class ByFirstLetter:
    """The first letter of an id is its owner; `most` sessions of each, and so many parked ones."""

    def __init__(self, most: int | None = None, max_parked: int = 100) -> None:
        self.most = most
        self.parked = max_parked

    def owner_of(self, session_id: str) -> str | None:
        return session_id[0]

    def max_sessions(self, owner: str | None) -> int | None:
        return self.most

    def max_parked(self, owner: str | None) -> int:
        return self.parked


class Shelf(Parking[State]):
    """A store that has all sessions but those in `unsaved`."""

    def __init__(self) -> None:
        self.unsaved: set[str] = set()
        self.taken: list[str] = []

    def can_park(self, session: Session[State]) -> bool:
        return session.session_id not in self.unsaved

    def parked(self, session: Session[State]) -> None:
        self.taken.append(session.session_id)


def with_shelf(
    owners: ByFirstLetter | None = None, clock: FakeClock | None = None
) -> tuple[SessionTable[State], Shelf]:
    """Return a table of four places, whose sessions can be parked."""
    sessions, shelf = table(clock, owners=owners or ByFirstLetter()), Shelf()
    sessions.places.parking = shelf
    return sessions, shelf


def names(sessions: SessionTable[State]) -> set[str]:
    """Return the ids in a table."""
    return {session.session_id for session in sessions}


def test_the_one_used_longest_ago_is_parked() -> None:
    """It is not in the table any more, and has not ended; what it held is released."""
    sessions, shelf = with_shelf()
    opened = [sessions.open(f"a{i}", State()) for i in range(4)]
    sessions.touch(opened[0])
    sessions.open("a4", State())
    assert shelf.taken == ["a1"]
    assert opened[1].state.released
    assert names(sessions) == {"a0", "a2", "a3", "a4"}
    with pytest.raises(SessionNotFound):
        sessions.get("a1")
    assert "a1" in sessions.places.parked
    sessions.check_integrity()


def test_what_is_busy_spared_or_unsaved_stays() -> None:
    """Without another one the request is refused, with the time of the first end."""
    clock = FakeClock()
    sessions, shelf = with_shelf(clock=clock)
    opened = [sessions.open(f"a{i}", State()) for i in range(4)]
    opened[0].work.append("a turn")
    shelf.unsaved = {"a1"}
    clock.now += 20
    sessions.touch(opened[2])
    sessions.open("a4", State(), spared=opened[2])
    assert shelf.taken == ["a3"]
    shelf.unsaved |= {"a2", "a4"}
    with pytest.raises(TooManySessions) as caught:
        sessions.open("a5", State())
    assert caught.value.retry_after_s == 40.0  # a1 expires then
    assert names(sessions) == {"a0", "a1", "a2", "a4"}


def test_a_refusal_keeps_no_session() -> None:
    """One that is closed after it is freed at once; no collection may come for hours."""
    sessions = table()
    held = [weakref.ref(sessions.open(f"a{i}", State())) for i in range(4)]
    with pytest.raises(TooManySessions):
        sessions.open("a4", State())
    for session in list(sessions):
        sessions.close(session)
    del session
    assert [one() for one in held] == [None] * 4


def test_no_owner_loses_a_session_for_another() -> None:
    """A full table refuses an owner without sessions; one with a session parks its own."""
    sessions, shelf = with_shelf()
    for name in ("a0", "a1", "a2", "b0"):
        sessions.open(name, State())
    with pytest.raises(TooManySessions):
        sessions.open("c0", State())
    sessions.open("b1", State())
    assert shelf.taken == ["b0"]
    assert names(sessions) == {"a0", "a1", "a2", "b1"}


def test_an_owner_with_a_quota_parks_its_own() -> None:
    """Or is refused by its quota's name, while others have room."""
    sessions, shelf = with_shelf(ByFirstLetter(most=2))
    for name in ("a0", "a1", "a2", "b0"):
        sessions.open(name, State())
    assert shelf.taken == ["a0"]
    shelf.unsaved = {"a1", "a2"}
    with pytest.raises(QuotaExceeded) as caught:
        sessions.open("a3", State())
    error = caught.value.to_body()["error"]
    assert (error["status"], error["field"]) == (429, "handler.quotas.openSessions")
    assert error["retry_after_s"] == 60.0
    sessions.open("b1", State())


def test_an_adopted_session_takes_a_place_too() -> None:
    """It comes back, and another one leaves; its owner is that of its id."""
    sessions, shelf = with_shelf(ByFirstLetter(most=1))
    first = sessions.open("a0", State())
    sessions.open("a1", State())
    sessions.adopt(first)
    assert shelf.taken == ["a0", "a1"]
    assert (first.owner, names(sessions)) == ("a", {"a0"})
    assert "a0" not in sessions.places.parked


def test_parked_sessions_are_bounded_until_the_store_drops_them() -> None:
    """Each owner has a bound of its own."""
    clock = FakeClock()
    sessions, shelf = with_shelf(ByFirstLetter(most=1, max_parked=2), clock)
    for name in ("a0", "a1", "a2", "b0", "b1"):
        sessions.open(name, State(), ttl_s=50)
    with pytest.raises(QuotaExceeded):
        sessions.open("a3", State())
    assert shelf.taken == ["a0", "a1", "b0"]
    clock.now += 50
    sessions.open("a3", State())
    sessions.open("a4", State())
    assert shelf.taken[3:] == ["a3"]


def test_sessions_of_single_requests_have_places_of_their_own() -> None:
    """A table full of idle sessions takes as many of them, and they take no place of the others."""
    sessions = table()
    for number in range(4):
        sessions.open(f"kept-{number}", State())
    with pytest.raises(TooManySessions):
        sessions.open("kept-4", State())
    passing = [sessions.open(f"single-{n}", State(), ephemeral=True) for n in range(4)]
    assert (sessions.tally.num_kept, len(sessions)) == (4, 8)
    with pytest.raises(TooManySessions, match="without a session") as caught:
        sessions.open("single-4", State(), ephemeral=True)
    assert caught.value.retry_after_s == 1.0
    for session in passing:
        sessions.forget(session)
    sessions.close(sessions.get("kept-0"))
    for number in range(4):
        sessions.open(f"single-{number}", State(), ephemeral=True)
    sessions.open("kept-4", State())
    sessions.check_integrity()
