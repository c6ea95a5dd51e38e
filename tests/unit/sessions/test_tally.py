"""Sums over the sessions of a table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ts_stateful.sessions.session import Session
from ts_stateful.sessions.tally import Tally


def session(name: str, device: int = 0, *, owner: str | None = None, **fields: Any) -> Session[Any]:
    """A session that was used at 100 and expires 10 seconds later."""
    state = SimpleNamespace(device_bytes=device, host_bytes=0)
    return Session(name, state, 100.0, 1000.0, 10.0, 100.0, owner=owner, **fields)


def test_sessions_are_counted_by_kind_and_owner() -> None:
    """As long as they are there."""
    tally: Tally[Any] = Tally()
    kept, other = session("a", owner="x"), session("b", owner="y")
    alone = session("c", owner="x", ephemeral=True)
    for one in (kept, other, alone):
        tally.add(one)
    assert (tally.num_kept, tally.num_kept_of("x"), tally.num_ephemeral) == (2, 1, 1)
    tally.remove(kept)
    tally.remove(alone)
    assert (tally.num_kept, tally.num_kept_of("x"), tally.num_ephemeral) == (1, 0, 0)
    tally.check_integrity([other])


def test_a_session_is_in_the_table_itself() -> None:
    """Another one of its id, which came back from a store, is not the same."""
    tally: Tally[Any] = Tally()
    left, back = session("a"), session("a")
    tally.add(left)
    assert left in tally
    assert back not in tally
    tally.remove(left)
    assert left not in tally


def test_bytes_of_a_busy_session_are_the_present_ones() -> None:
    """An idle one is measured once, and again when it changed."""
    tally: Tally[Any] = Tally()
    busy, idle = session("a", 5, work=[1]), session("b", 7)
    for one in (busy, idle):
        tally.add(one)
    assert tally.device_bytes == 12
    busy.state.device_bytes, idle.state.host_bytes = 6, 3
    assert (tally.device_bytes, tally.host_bytes) == (13, 0)
    tally.changed(idle)
    assert (tally.device_bytes, tally.host_bytes) == (13, 3)
    tally.remove(busy)
    assert (tally.device_bytes, tally.host_bytes) == (7, 3)
    tally.changed(busy)  # it has left
    assert tally.device_bytes == 7


def test_nobody_looks_before_a_session_can_expire() -> None:
    """A use postpones the time only when all sessions were looked at; a shorter life counts at once."""
    tally: Tally[Any] = Tally()
    one = session("a")
    tally.add(one)
    assert not tally.may_expire(109.9)
    assert tally.may_expire(110.0)
    one.last_used = 150.0
    tally.looked([one], 150.0)
    assert not tally.may_expire(159.9)
    one.work.append(1)
    tally.looked([one], 155.0)  # its idle time begins again after its turn
    assert not tally.may_expire(164.9)
    one.expires_at = 120.0
    tally.shortened(one)
    assert tally.may_expire(120.0)


def test_a_sum_that_is_wrong_is_found() -> None:
    """Sessions must not change unnoticed."""
    tally: Tally[Any] = Tally()
    one = session("a", 5)
    tally.add(one)
    tally.check_integrity([one])
    one.state.device_bytes = 6
    with pytest.raises(AssertionError):
        tally.check_integrity([one])
