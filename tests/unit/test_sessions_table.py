"""The session table on plain integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.harness import Clock
from ts_stateful.errors import (
    SessionClosed,
    SessionError,
    SessionExists,
    SessionExpired,
    SessionNotFound,
    TooManySessions,
)
from ts_stateful.sessions.session import Residency, Session
from ts_stateful.sessions.shared import SharedCache
from ts_stateful.sessions.table import Limits, SessionTable


@dataclass(eq=False)
class Picture:
    """Something that sessions share."""

    key: str
    num_bytes: int = 10


@dataclass
class State:
    """So many bytes, somewhere, and what it shares."""

    size: int = 10
    residency: Residency = Residency.DEVICE
    cost: float = 1.0
    shared: Sequence[Picture] = field(default=())

    @property
    def device_bytes(self) -> int:
        return self.size if self.residency is Residency.DEVICE else 0

    @property
    def host_bytes(self) -> int:
        return self.size if self.residency is Residency.HOST else 0

    def to_host(self) -> None:
        self.residency = Residency.HOST

    def release(self) -> None:
        """See `SessionState`."""
        self.released = True

    def to_record(self) -> None:
        self.residency = Residency.RECORD


def table(
    clock: Clock | None = None, shared: SharedCache[Picture] | None = None, **limits: object
) -> SessionTable[State]:
    made = Limits(**{"max_sessions": 4, "idle_s": 60.0, "lifetime_s": 600.0, **limits})  # type: ignore[arg-type]
    return SessionTable(
        made,
        SharedCache(0) if shared is None else shared,
        clock or Clock(),
        rebuild_cost=lambda state: state.cost,
    )


@pytest.fixture
def shared() -> SharedCache[Picture]:
    """With room for ten pictures that no session uses."""
    return SharedCache(100)


def test_a_session_is_found_until_it_is_closed() -> None:
    """Then its id says that it was closed, for an hour."""
    clock = Clock()
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
    clock = Clock()
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
    clock = Clock()
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
    clock = Clock()
    sessions = table(clock)
    session = sessions.open("a", State())
    session.work.append(object())
    clock.now += 100
    assert sessions.expire() == []
    assert sessions.get("a") is session
    clock.now += 1000
    assert sessions.expire() == []
    with pytest.raises(SessionExpired):
        sessions.get("a")
    session.work.clear()
    assert sessions.expire() == [session]


def test_a_full_table_refuses_and_says_when_to_come_back() -> None:
    """An expired session makes room, a live one does not."""
    clock = Clock()
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


def test_nobody_is_evicted_where_that_does_not_help(shared: SharedCache[Picture]) -> None:
    """What is larger than all that could be freed is refused, and everybody keeps what they have."""
    sessions = table(shared=shared, device_bytes=50)
    busy, idle, spared = (sessions.open(name, State()) for name in "abc")
    busy.work.append(object())
    sessions.close(sessions.open("ended", State(shared=[shared.get("p", lambda: Picture("p"))])))
    assert sessions.device_bytes == 40
    assert not sessions.make_room(31, spared=spared)
    assert (sessions.device_bytes, idle.state.device_bytes) == (40, 10)
    assert sessions.make_room(30, spared=spared)
    assert (sessions.device_bytes, idle.state.device_bytes) == (20, 0)


def test_room_is_made_from_the_least_recently_used() -> None:
    """Busy sessions keep their tensors; without enough idle ones the answer is no."""
    sessions = table(device_bytes=35)
    opened = [sessions.open(name, State()) for name in "abc"]
    sessions.touch(opened[0])
    assert sessions.make_room(10)
    assert [s.state.residency for s in opened] == [
        Residency.DEVICE,
        Residency.RECORD,
        Residency.DEVICE,
    ]
    for session in opened:
        session.work.append(object())
    assert not sessions.make_room(30)


def test_the_ladder_has_a_step_in_host_memory() -> None:
    """What leaves the device goes to the host while that has room; the oldest there goes down to the record."""
    sessions = table(device_bytes=15, host_bytes=20)
    opened = []
    for name in "abcd":
        assert sessions.make_room(10)
        opened.append(sessions.open(name, State()))
    assert [s.state.residency for s in opened] == [
        Residency.RECORD,
        Residency.HOST,
        Residency.HOST,
        Residency.DEVICE,
    ]
    assert (sessions.device_bytes, sessions.host_bytes) == (10, 20)


def test_what_costs_more_to_rebuild_stays_longer() -> None:
    """Twice as much for a byte: twice as long unused. What is cheap goes before what was used earlier."""
    clock = Clock()
    sessions = table(clock, device_bytes=40)
    costs = {"dear": 2.5, "old": 1.0, "cheap": 0.1, "new": 1.0}
    for name, cost in costs.items():
        sessions.open(name, State(cost=cost))
        clock.now += 10  # idle for 40, 30, 20 and 10 seconds in the end
    left = []
    while sessions.leaving():
        left.append(sessions.leaving()[0].session_id)
        assert sessions.make_room(sessions._limits.device_bytes - sessions.device_bytes + 1)  # type: ignore[operator]
    assert left == ["cheap", "old", "dear", "new"]


def test_a_copy_in_host_memory_costs_everybody_the_same() -> None:
    """So there the least recently used goes first, and costs count for who is dropped from there."""
    clock = Clock()
    sessions = table(clock, device_bytes=30, host_bytes=20)
    for name, cost in {"a": 9.0, "b": 1.0, "c": 1.0}.items():
        sessions.open(name, State(cost=cost))
        clock.now += 10
    states = [sessions.get(name).state for name in "abc"]
    assert sessions.make_room(20)
    assert [state.residency.value for state in states] == ["host", "host", "device"]
    assert sessions.make_room(30)
    assert [state.residency.value for state in states] == ["host", "record", "host"]


def test_what_is_larger_than_host_memory_drives_nobody_out_of_it() -> None:
    """It is dropped at once."""
    sessions = table(device_bytes=30, host_bytes=20)
    small, large = (sessions.open("small", State()), sessions.open("large", State(size=25)))
    small.state.to_host()
    assert sessions.make_room(30)
    assert (small.state.residency, large.state.residency) == (Residency.HOST, Residency.RECORD)


def test_what_is_shared_counts_once(shared: SharedCache[Picture]) -> None:
    """However many sessions use it; each counts what is its own."""
    sessions = table(shared=shared)
    picture = shared.get("p", lambda: Picture("p"))
    for name in "abc":
        sessions.open(name, State(shared=[picture]))
    assert sessions.device_bytes == 30 + 10


def test_what_an_ended_session_has_used_is_kept(shared: SharedCache[Picture]) -> None:
    """Closed or expired, but not one that never came to be."""
    clock = Clock()
    sessions = table(clock, shared)
    for name in "abc":
        sessions.open(name, State(shared=[shared.get(name, lambda key=name: Picture(key))]))  # type: ignore[misc]
    sessions.close(sessions.get("a"))
    sessions.forget(sessions.get("b"))
    clock.now += 60
    sessions.expire()
    assert len(sessions) == 0
    assert sessions.device_bytes == 20
    shared.get("a", lambda: pytest.fail("made again"))
    shared.get("c", lambda: pytest.fail("made again"))


def test_what_no_session_uses_goes_before_any_sessions_tensors(
    shared: SharedCache[Picture],
) -> None:
    """The first room is made there, and what is in use stays in the last resort too."""
    sessions = table(shared=shared, device_bytes=45)
    pictures = [shared.get(key, lambda key=key: Picture(key)) for key in "pq"]  # type: ignore[misc]
    sessions.close(sessions.open("ended", State(shared=pictures)))
    for name in "ab":
        sessions.open(name, State(shared=pictures[:1]))
    del pictures
    assert sessions.device_bytes == 40
    assert sessions.make_room(15)
    assert sessions.device_bytes == 30
    assert all(session.state.residency is Residency.DEVICE for session in sessions)
    assert sessions.make_room(20)
    assert [session.state.residency for session in sessions] == [
        Residency.DEVICE,
        Residency.RECORD,
    ]
    sessions.evict_idle()
    assert sessions.device_bytes == 10


@given(st.lists(st.tuples(st.sampled_from("ougcew"), st.integers(0, 6), st.integers(0, 90))))
def test_no_sequence_of_calls_breaks_the_table(calls: list[tuple[str, int, int]]) -> None:
    """Whatever is done in whatever order, what must hold holds, and the budget is kept when there is room."""
    clock = Clock()
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
        assert sessions.host_bytes <= 10
