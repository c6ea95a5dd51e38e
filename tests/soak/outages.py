"""When TorchServe's worker was down, because it was killed.

Owns these times: then, and only then, a connection may break. Any thread may ask.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["Outages"]


class Outages:
    """What was killed when, and since when it has been back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open = 0
        self._last_end = float("-inf")

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """The worker is killed in this block, and answers behind it."""
        with self._lock:
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                self._last_end = self._clock()

    def touched(self, since: float) -> bool:
        """Whether the worker was down at any time since then."""
        with self._lock:
            return self._open > 0 or self._last_end >= since
