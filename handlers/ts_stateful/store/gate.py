"""A gate before a store: while it is silent, one call waits for it, and all others fail at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.store.base import StoreUnavailable

__all__ = ["Gate"]


class Gate:
    """Else each of many sessions would wait for its own timeout, a few of them at a time.

    The store is silent after one of these `timeouts`, if it has answered no other call meanwhile. Any answer ends it.
    """

    def __init__(self, *timeouts: type[Exception], clock: Clock = SYSTEM_CLOCK) -> None:
        self._timeouts, self._clock = timeouts, clock
        self._answered_at = clock.monotonic()
        self._is_silent = False
        self._trial = threading.Lock()

    @contextlib.contextmanager
    def passed(self) -> Iterator[None]:
        """Make a call to the store. Raise `StoreUnavailable` if it is silent, and another call waits for it."""
        is_trial = self._is_silent
        if is_trial and not self._trial.acquire(blocking=False):
            raise StoreUnavailable("no answer", "another call waits for the store; check its load")
        began_at, is_answered = self._clock.monotonic(), True
        try:
            yield
        except self._timeouts:
            is_answered = False
            raise
        finally:
            if is_answered:  # maybe by a refusal
                self._answered_at, self._is_silent = self._clock.monotonic(), False
            elif self._answered_at <= began_at:
                self._is_silent = True
            if is_trial:
                self._trial.release()
