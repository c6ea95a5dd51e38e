"""Calls of the store for sequences: on its threads, of each sequence one after the other.

Owns their order, and what becomes of a write that fails. Knows nothing of what is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from ts_stateful.defects import defect
from ts_stateful.errors import SessionMoved, StatefulError, StoreFailed
from ts_stateful.state.commits import Place
from ts_stateful.store.access import StoreAccess
from ts_stateful.store.base import StoreError

__all__ = ["Writer"]

logger = logging.getLogger(__name__)


class Writer:
    """Asks one store for one engine, to whose thread `post` brings what came of it."""

    def __init__(self, access: StoreAccess, post: Callable[[Callable[[], None]], None]) -> None:
        self.num_failed = 0  # writes
        self._policy = access.policy
        self._executor = access.executor
        self._post = post

    def run(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Does something on a thread; `then` gets what came of it, also if that is an exception."""

        def done() -> None:
            outcome: Any
            try:
                outcome = job()
            except Exception as error:
                outcome = error.with_traceback(None)
            self._post(partial(then, outcome))

        self._executor.submit(done)

    def in_order(self, place: Place, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """The same, behind what was asked for before of that sequence."""
        place.pending.append((job, then))
        self._next(place)

    def reason(self, place: Place, outcome: Any) -> StatefulError | None:
        """Why a sequence must not go on here behind a write, by what came of that."""
        if outcome is False:
            return SessionMoved("the sequence goes on at another server; ask again")
        if not isinstance(outcome, Exception):
            return None
        self.num_failed += 1
        logger.error("a step could not be written to the store: %s", _what(outcome))
        if self._policy == "best_effort":
            place.position += 1
            place.has_hole = True
            return None
        if not isinstance(outcome, StoreError):
            return defect(outcome, "writing to the store")
        return StoreFailed(
            "the step could not be written to the store and was taken back, send it again",
            retry_after_s=1.0,
        )

    def _next(self, place: Place) -> None:
        if place.is_busy or not place.pending:
            return
        place.is_busy = True
        job, then = place.pending.popleft()

        def done(outcome: Any) -> None:
            place.is_busy = False
            then(outcome)
            self._next(place)

        self.run(job, done)


def _what(error: Exception) -> str:
    return str(error) if isinstance(error, StoreError) else type(error).__name__
