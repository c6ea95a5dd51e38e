"""The session table on plain integers: which sessions there are, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import FakeClock
from tests.support.plain_states import State, table
from ts_stateful.protocol.errors import (
    SessionClosed,
    SessionError,
    SessionExists,
    SessionExpired,
    SessionNotFound,
    TooManySessions,
)
from ts_stateful.sessions.session import Session


def test_a_session_is_found_until_it_is_closed() -> None:
    """Then its id says that it was closed, for an hour."""
    clock = FakeClock()
    sessions = table(clock)
    session = sessions.open("a", State())
    assert sessions.get("a") is session
    sessions.close(session)
    clock.now += 3599
    with pytest.raises(SessionClosed):
        sessions.get("a")
    clock.now += 2
    with pytest.raises(SessionNotFound):
        sessions.get("a")


def test_idleness_expires_and_use_postpones_it() -> None:
    """A session lives `idle_s` after its last use."""
    clock = FakeClock()
    sessions = table(clock)
    session = sessions.open("a", State())
    clock.now += 59
    sessions.touch(session)
    clock.now += 59
    assert sessions.get("a") is session
    clock.now += 1
    with pytest.raises(SessionExpired):
        sessions.get("a")
    assert len(sessions) == 0


def test_the_absolute_end_comes_in_spite_of_use() -> None:
    """`ttl_s` shortens a lifetime and never prolongs it."""
    clock = FakeClock()
    sessions = table(clock, idle_s=10_000.0)
    short = sessions.open("short", State(), ttl_s=100)
    sessions.open("long", State(), ttl_s=10_000)
    clock.now += 99
    sessions.touch(short)
    clock.now += 1
    with pytest.raises(SessionExpired):
        sessions.get("short")
    clock.now += 500
    with pytest.raises(SessionExpired):
        sessions.get("long")


def test_a_busy_session_is_not_taken_away() -> None:
    """Neither idleness nor its absolute end removes a session whose turn runs; then new work is refused."""
    clock = FakeClock()
    sessions = table(clock)
    session = sessions.open("a", State())
    session.work.append(object())
    clock.now += 100
    sessions.expire()
    assert sessions.get("a") is session
    clock.now += 1000
    sessions.expire()
    assert sessions.take_expired() == []
    with pytest.raises(SessionExpired):
        sessions.get("a")
    session.work.clear()
    sessions.expire()
    assert sessions.take_expired() == [session]


def test_a_full_table_refuses_and_says_when_to_come_back() -> None:
    """An expired session makes room, a live one does not."""
    clock = FakeClock()
    sessions = table(clock)
    for name in "abcd":
        sessions.open(name, State())
    clock.now += 20
    with pytest.raises(TooManySessions) as caught:
        sessions.open("e", State())
    assert caught.value.retry_after_s == 40
    clock.now += 40
    sessions.open("e", State())
    assert len(sessions) == 1


def test_a_live_id_cannot_be_opened_twice_but_an_ended_one_can() -> None:
    """The id of a closed session may be used again."""
    sessions = table()
    session = sessions.open("a", State())
    with pytest.raises(SessionExists):
        sessions.open("a", State())
    sessions.close(session)
    again = sessions.open("a", State())
    assert sessions.get("a") is again


def test_a_forgotten_open_never_was() -> None:
    """Unlike a closed session it leaves no memory."""
    sessions = table()
    sessions.forget(sessions.open("a", State()))
    with pytest.raises(SessionNotFound):
        sessions.get("a")


def test_who_has_the_id_of_one_that_is_gone_is_not_forgotten() -> None:
    """What came of the first one may be known late."""
    sessions = table()
    gone = sessions.open("a", State())
    sessions.close(gone)
    sessions.forget(gone)
    again = sessions.open("a", State())
    sessions.forget(gone)
    assert sessions.get("a") is again


@given(st.lists(st.tuples(st.sampled_from("ougcew"), st.integers(0, 6), st.integers(0, 90))))
def test_no_sequence_of_calls_breaks_the_table(calls: list[tuple[str, int, int]]) -> None:
    """Whatever is done in whatever order, what must hold holds, and the budget is kept when there is room."""
    clock = FakeClock()
    sessions = table(clock, device_bytes=25, host_bytes=10)
    alive: dict[str, Session[State]] = {}
    for action, number, seconds in calls:
        clock.now += seconds
        name = f"s{number}"
        try:
            if action == "o":
                sessions.make_room(10)
                alive[name] = sessions.open(name, State())
            elif action == "u":
                sessions.touch(sessions.get(name))
            elif action == "g":
                assert sessions.get(name) is alive[name]
            elif action == "c":
                sessions.close(sessions.get(name))
            elif action == "e":
                sessions.expire()
            else:
                sessions.get(name).work.append(object())
        except SessionError:
            pass
        except TooManySessions:
            assert len(sessions) == 4
        sessions.check_integrity()
        assert sessions.tally.host_bytes <= 10
