"""Calls of a store from an engine: on threads of their own, of one session one after the other.

Owns their order, how their outcome gets back to the engine's thread, and what a failed write means for who asked. Knows nothing
of what is read or written.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import SessionMoved, StatefulError, StoreFailed
from ts_stateful.store.access import StoreAccess
from ts_stateful.store.base import StoreError

__all__ = ["CallQueue", "StoreCalls"]

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class CallQueue:
    """Calls that follow one another, of which one at most is under way."""

    is_busy: bool = False
    waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = field(default_factory=deque)


class StoreCalls:
    """Asks one store for one engine, to whose thread `post` brings what came of it; all methods are for that thread."""

    def __init__(self, access: StoreAccess, post: Callable[[Callable[[], None]], None]) -> None:
        self.num_failed = 0  # writes
        self.store, self.policy, self._executor = access.store, access.policy, access.executor
        self._post = post

    def run(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Does something on a thread of the store; `then` gets what came of it, also if that is an exception."""

        def done() -> None:
            outcome: Any
            try:
                outcome = job()
            except Exception as error:
                outcome = error.with_traceback(None)
            self._post(partial(then, outcome))

        self._executor.submit(done)

    def in_order(
        self, line: CallQueue, job: Callable[[], Any], then: Callable[[Any], None]
    ) -> None:
        """The same, behind what was asked for before in that line."""
        line.waiting.append((job, then))
        self._next(line)

    def reason(self, outcome: Any, whole: str, part: str) -> StatefulError | None:
        """Why what was written must be undone, by what came of that: False is a place that somebody else has taken.

        With the policy `best_effort` a failure is counted, and is no reason. `whole` and `part` are what the client calls
        what was written: a session and a turn, for instance.
        """
        if outcome is False:
            return SessionMoved(f"the {whole} goes on at another server; ask again")
        if not isinstance(outcome, Exception):
            return None
        self.num_failed += 1
        known = isinstance(outcome, StoreError)
        what = outcome if known else type(outcome).__name__
        logger.error("a %s could not be written to the store: %s", part, what)
        if self.policy == "best_effort":
            return None
        if not known:
            return defect(outcome, "writing to the store")
        return StoreFailed(
            f"the {part} could not be written to the store and was taken back; send it again",
            retry_after_s=1.0,
        )

    def _next(self, line: CallQueue) -> None:
        if line.is_busy or not line.waiting:
            return
        line.is_busy = True
        job, then = line.waiting.popleft()

        def done(outcome: Any) -> None:
            line.is_busy = False
            then(outcome)
            self._next(line)

        self.run(job, done)
