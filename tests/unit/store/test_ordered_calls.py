"""Calls of an engine to its store."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

import pytest

from tests.support.clock import FakeClock
from tests.support.memory_store import MemoryStore
from ts_stateful.protocol.errors import InternalError, SessionMoved, StoreFailed
from ts_stateful.store.access import StoreAccess
from ts_stateful.store.base import StoreUnavailable
from ts_stateful.store.ordered_calls import CallQueue, StoreCalls

Results = queue.SimpleQueue[Callable[[], None]]


def calls(
    executor: ThreadPoolExecutor,
    results: Results | None = None,
    policy: Literal["required", "best_effort"] = "required",
) -> StoreCalls:
    """Return the calls to an empty store."""
    return StoreCalls(StoreAccess(MemoryStore(), policy, executor), results or queue.SimpleQueue())


def test_calls_of_one_queue_run_in_order() -> None:
    """The next one starts after the outcome of the last, which may be an exception."""
    results: Results = queue.SimpleQueue()
    outcomes: list[Any] = []
    with ThreadPoolExecutor(4) as executor:
        made, own = calls(executor, results), CallQueue()
        for job in (lambda: 1, lambda: 1 // 0, lambda: len(outcomes)):
            made.in_order(own, job, outcomes.append)
        for _ in range(3):
            results.get(timeout=10)()
    assert isinstance(outcomes.pop(1), ZeroDivisionError)
    assert outcomes == [1, 2]
    assert not own.is_busy


def test_failed_calls_run_again_in_order() -> None:
    """One after the other, with a pause as long as the store does not answer; another error ends a call."""
    results: Results = queue.SimpleQueue()
    clock, is_down, ran = FakeClock(), True, list[int]()

    def job(number: int) -> None:
        ran.append(number)
        if is_down:
            raise StoreUnavailable("down", "wait")
        if number == 0:
            raise ZeroDivisionError

    with ThreadPoolExecutor(1) as executor:
        access = StoreAccess(MemoryStore(), "required", executor)
        made = StoreCalls(access, results, clock)
        for number in range(3):
            made.again(partial(job, number))
        for num_calls, expected in ((0, []), (1, [0]), (3, [0, 0, 1, 2]), (0, [0, 0, 1, 2])):
            made.tick()
            made.tick()
            for _ in range(num_calls):
                results.get(timeout=10)()
            made.tick()
            assert ran == expected
            is_down = not expected
            clock.now += 5


@pytest.mark.parametrize(
    ("outcome", "required", "best_effort"),
    [
        (True, type(None), type(None)),
        (False, SessionMoved, SessionMoved),
        (StoreUnavailable("down", "wait"), StoreFailed, type(None)),
        (ZeroDivisionError(), InternalError, type(None)),
    ],
)
def test_the_policy_decides_about_a_failed_write(
    outcome: object, required: type, best_effort: type
) -> None:
    """With `best_effort` a failure is only counted. A session that moved is an error with both policies."""
    with ThreadPoolExecutor(1) as executor:
        for policy, expected in (("required", required), ("best_effort", best_effort)):
            made = calls(executor, policy=policy)  # type: ignore[arg-type]
            assert type(made.reason(outcome, "session", "turn")) is expected
            assert made.num_failed == isinstance(outcome, Exception)
