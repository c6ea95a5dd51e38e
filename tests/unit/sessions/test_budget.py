"""Who keeps tensors where, under the byte budgets of the session table, on plain integers."""

from __future__ import annotations

import pytest

from tests.support.clock import FakeClock
from tests.support.plain_states import Picture, State, table
from ts_stateful.sessions.session import Residency
from ts_stateful.sessions.shared import SharedCache


@pytest.fixture
def shared() -> SharedCache[Picture]:
    """With room for ten pictures that no session uses."""
    return SharedCache(100)


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
    assert (sessions.device_bytes, sessions.tally.host_bytes) == (10, 20)


def test_what_costs_more_to_rebuild_stays_longer() -> None:
    """Twice as much for a byte: twice as long unused. What is cheap goes before what was used earlier."""
    clock = FakeClock()
    sessions = table(clock, device_bytes=40)
    costs = {"dear": 2.5, "old": 1.0, "cheap": 0.1, "new": 1.0}
    for name, cost in costs.items():
        sessions.open(name, State(cost=cost))
        clock.now += 10  # idle for 40, 30, 20 and 10 seconds in the end
    left = []
    while sessions.leaving():
        left.append(sessions.leaving()[0].session_id)
        assert sessions.make_room(sessions.limits.device_bytes - sessions.device_bytes + 1)  # type: ignore[operator]
    assert left == ["cheap", "old", "dear", "new"]


def test_a_copy_in_host_memory_costs_everybody_the_same() -> None:
    """So there the least recently used goes first, and costs count for who is dropped from there."""
    clock = FakeClock()
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
    clock = FakeClock()
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
