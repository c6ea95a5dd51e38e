"""Calls of an engine to its store: on the store's threads, those of one session in order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import SessionMoved, StatefulError, StoreFailed
from ts_stateful.store.access import StoreAccess
from ts_stateful.store.base import StoreError, StoreUnavailable

__all__ = ["CallQueue", "ResultQueue", "StoreCalls", "not_erased"]

logger = logging.getLogger(__name__)

_PAUSE_S = 5.0  # before jobs that failed run again
_MOST_FAILED = 10_000


class ResultQueue(Protocol):
    """A queue whose actions run on the engine's thread; `queue.SimpleQueue` is one."""

    def put(self, action: Callable[[], None], /) -> None:
        """Add an action, from any thread."""


@dataclass(eq=False, slots=True)
class CallQueue:
    """Calls that run one after the other. Every session has one, so an empty one is small."""

    is_busy: bool = False
    waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = field(default_factory=list)


class StoreCalls:
    """Calls of one engine to one store; `results` takes their outcomes. All methods are for the engine's thread."""

    def __init__(
        self, access: StoreAccess, results: ResultQueue, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._clock = clock
        self.num_failed = 0  # writes
        self.num_calls, self.seconds = 0, 0.0  # that have ended
        self.access, self.store, self.policy = access, access.store, access.policy
        self._results = results
        self._failed: deque[Callable[[], Any]] = deque()
        self._is_trying, self._again_at = False, 0.0

    def run(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run a job on a thread of the store; `then` gets its result or its exception."""

        def done() -> None:
            outcome: Any
            began_at = self._clock.monotonic()
            try:
                outcome = job()
            except Exception as error:  # the boundary of a store's thread
                outcome = error.with_traceback(None)
            taken_s = self._clock.monotonic() - began_at
            self._results.put(partial(self._ended, taken_s, then, outcome))

        self.access.executor.submit(done)

    def _ended(self, taken_s: float, then: Callable[[Any], None], outcome: Any) -> None:
        self.num_calls += 1
        self.seconds += taken_s
        then(outcome)

    def in_order(
        self, queue: CallQueue, job: Callable[[], Any], then: Callable[[Any], None]
    ) -> None:
        """Run a job after those that are in the queue already."""
        queue.waiting.append((job, then))
        self._next(queue)

    def again(self, job: Callable[[], Any]) -> None:
        """Run a job that failed once more, after a pause and until the store answers. Too many are dropped."""
        if len(self._failed) == _MOST_FAILED:
            logger.warning("a call to the store is not tried again: %d others wait", _MOST_FAILED)
            return
        if not self._failed:
            self._again_at = self._clock.monotonic() + _PAUSE_S
        self._failed.append(job)

    def tick(self) -> None:
        """Begin to run the first of the jobs that failed, if the pause is over."""
        if self._failed and not self._is_trying and self._clock.monotonic() >= self._again_at:
            self._is_trying = True
            self.run(self._failed[0], self._tried)

    def _tried(self, outcome: Any) -> None:
        self._is_trying = False
        if isinstance(outcome, StoreUnavailable):
            self._again_at = self._clock.monotonic() + _PAUSE_S
            return
        if isinstance(outcome, Exception):
            logger.warning("a call to the store failed, and is not tried again: %s", outcome)
        self._failed.popleft()
        self.tick()

    def reason(self, outcome: Any, whole: str, part: str) -> StatefulError | None:
        """Return the error for which a write must be undone; False means that another server wrote first.

        With the policy `best_effort` a failure is counted, and nothing is undone. `whole` and `part` are the client's
        words for what was written: a session and a turn, for instance.
        """
        if outcome is False:
            return SessionMoved(f"another server continued the {whole}; send the request again")
        if not isinstance(outcome, Exception):
            return None
        self.num_failed += 1
        known = isinstance(outcome, StoreError)
        cause = outcome if known else type(outcome).__name__
        logger.error("writing a %s to the store failed: %s", part, cause)
        if self.policy == "best_effort":
            return None
        if not known:
            return defect(outcome, "writing to the store")
        return StoreFailed(
            f"the {part} could not be written to the store and was rolled back; send it again",
            retry_after_s=1.0,
        )

    def _next(self, queue: CallQueue) -> None:
        if queue.is_busy or not queue.waiting:
            return
        queue.is_busy = True
        job, then = queue.waiting.pop(0)

        def done(outcome: Any) -> None:
            queue.is_busy = False
            then(outcome)
            self._next(queue)

        self.run(job, done)


def not_erased() -> StoreFailed:
    """Return the error for a session that has ended, but that the store may still have."""
    return StoreFailed(
        "the session was closed, but the store may still have it; send the same `close` again",
        retry_after_s=1.0,
    )
