"""Sequences that wait for a place while all are taken."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from tests.support.state_harness import StateHarness
from tests.support.sums import MortalStore, add, starter, total
from ts_stateful.protocol.requests import Close, Fork, Info, Open

WAIT_S = 5.0


def engine(
    places: int = 1, queued: int = 2, store: MortalStore | None = None, **keys: Any
) -> StateHarness:
    """Return an engine with so many places and sequences that may wait."""
    handler = {"maxQueuedSequences": queued, "queuedSequenceSec": WAIT_S, "onFull": "refuse"}
    start = starter(store)
    return start(1 if store else 0, max_num_sequence=places, handler=handler, **keys)


def waits(harness: StateHarness, *request_ids: str) -> bool:
    """Return True if none of these requests is answered."""
    return not harness.events.keys() & set(request_ids)


@pytest.mark.parametrize("has_store", [False, True])
def test_a_sequence_waits_for_a_place(has_store: bool) -> None:
    """With all its steps, in their order; the one that came first gets the place."""
    harness = engine(store=MortalStore() if has_store else None)
    harness.ask(add(1, "a"))
    first = [harness.submit(add(number, "b"), creates_session=number == 1) for number in (1, 2)]
    second = harness.submit(add(10, "c", end=True))
    harness.run()
    assert waits(harness, *first, second)
    assert total(harness.ask(add(2, "a", end=True))) == 3
    assert [total(harness.answer(name)) for name in first] == [1, 3]
    assert waits(harness, second)
    assert total(harness.ask(add(3, "b", end=True))) == 6
    assert total(harness.answer(second)) == 10


def test_a_sequence_that_waits_keeps_no_other_in_memory() -> None:
    """The states of one that ended are freed while others still wait."""
    harness = engine()
    harness.ask(add(1, "a"))
    held = weakref.ref(harness.engine.table.get("a"))
    first, second = (harness.submit(Open(session_id=name), creates_session=True) for name in "bc")
    harness.ask(Close(session_id="a"))
    assert harness.answer(first)["session_id"] == "b"
    assert waits(harness, second)
    assert held() is None


@pytest.mark.parametrize("end", ["close", "expiry"])
def test_every_end_of_a_sequence_is_a_place(end: str) -> None:
    """Also one by the clock, which the engine asks to be called at."""
    harness = engine(sequence_max_idle_ms=2000)
    harness.ask(add(1, "a"))
    waiting = harness.submit(Open(session_id="b"), creates_session=True)
    assert waits(harness, waiting)
    if end == "close":
        harness.ask(Close(session_id="a"))
    else:
        harness.clock.now += 2
        assert harness.engine.next_deadline() <= harness.clock.now
        harness.engine.tick()
    assert harness.answer(waiting)["session_id"] == "b"


def test_the_wait_has_an_end() -> None:
    """Then the request is refused as it is without a backlog, and those that were meant to follow it, too."""
    harness = engine()
    harness.ask(add(1, "a"))
    waiting = [harness.submit(add(number, "b"), creates_session=number == 1) for number in (1, 2)]
    late = harness.submit(add(1, "c"))
    harness.clock.now += WAIT_S - 0.5
    harness.engine.tick()
    assert waits(harness, *waiting, late)
    harness.clock.now += 0.5
    assert harness.engine.next_deadline() <= harness.clock.now
    harness.engine.tick()
    assert [harness.code(name) for name in (*waiting, late)] == ["too_many_sessions"] * 3
    assert harness.answer(late)["error"]["retry_after_s"] > 0
    assert total(harness.ask(add(2, "a", end=True))) == 3
    assert total(harness.ask(add(4, "b"))) == 4


def test_a_full_backlog_refuses() -> None:
    """As does an engine that is not the last one to be asked."""
    harness = engine(queued=1)
    harness.ask(add(1, "a"))
    waiting = harness.submit(add(1, "b"))
    assert harness.code(harness.submit(add(1, "c"))) == "too_many_sessions"
    roomy = engine(queued=2)
    roomy.ask(add(1, "a"))
    assert roomy.code(roomy.submit(add(1, "b"), may_wait=False)) == "too_many_sessions"
    assert waits(harness, waiting)


def test_a_backlog_of_none_refuses_at_once() -> None:
    """It is the default."""
    harness = starter(None)(0, max_num_sequence=1)
    harness.ask(add(1, "a"))
    assert harness.code(harness.submit(add(1, "b"))) == "too_many_sessions"


def test_a_place_is_not_taken_by_a_later_request() -> None:
    """A request that comes when a place is free by the clock gets it after those that wait."""
    harness = engine(sequence_max_idle_ms=2000)
    harness.ask(add(1, "a"))
    early = harness.submit(add(1, "b"))
    harness.clock.now += 2
    late = harness.submit(add(1, "c"))
    harness.run()
    assert total(harness.answer(early)) == 1
    assert waits(harness, late)


def test_requests_for_a_waiting_sequence_wait_with_it() -> None:
    """`info` and `close` come after the step that begins it."""
    harness = engine()
    harness.ask(add(1, "a"))
    asked = [
        harness.submit(add(1, "b")),
        harness.submit(Info(session_id="b")),
        harness.submit(Close(session_id="b")),
    ]
    assert waits(harness, *asked)
    harness.ask(Close(session_id="a"))
    harness.run()
    assert harness.answer(asked[1])["session_id"] == "b"
    assert harness.answer(asked[2])["closed"]


def test_a_fork_waits_for_a_place_of_its_own() -> None:
    """Its source goes on meanwhile."""
    harness = engine(places=2)
    harness.ask(add(1, "a"))
    harness.ask(add(1, "b"))
    forked = harness.submit(Fork(session_id="a", new_session_id="c"), creates_session=True)
    assert total(harness.ask(add(2, "a"))) == 3
    assert waits(harness, forked)
    harness.ask(Close(session_id="b"))
    assert harness.answer(forked)["turn"] == 2


def test_the_id_of_a_closed_sequence_waits_too() -> None:
    """Its next step begins another one."""
    harness = engine()
    harness.ask(add(1, "a"))
    harness.ask(Close(session_id="a"))
    harness.ask(add(1, "b"))
    waiting = harness.submit(add(5, "a"), creates_session=False)
    assert waits(harness, waiting)
    harness.ask(Close(session_id="b"))
    harness.run()
    assert total(harness.answer(waiting)) == 5


def test_a_client_that_disconnects_leaves_the_backlog() -> None:
    """Unless later steps build on the one that it sent."""
    harness = engine()
    harness.ask(add(1, "a"))
    alone = harness.submit(add(1, "b"))
    first, second = (
        harness.submit(add(number, "c"), creates_session=number == 1) for number in (1, 2)
    )
    harness.engine.drop(alone)
    harness.engine.drop(first)
    harness.ask(Close(session_id="a"))
    harness.run()
    assert waits(harness, alone)
    assert total(harness.answer(second)) == 3
