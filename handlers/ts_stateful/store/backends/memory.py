"""Values in the memory of this process, for tests.

Owns a dictionary; everything is lost with the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from ts_stateful.store.base import check_key

__all__ = ["MemoryStore"]


class MemoryStore:
    """A store that nobody else sees. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        self._ends_s: dict[str, float] = {}

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        """Writes a value if there is none under that key."""
        end_s = float("inf") if ttl_s is None else self._clock() + ttl_s
        with self._lock:
            is_new = check_key(key) not in self._values
            self._values.setdefault(key, bytes(data))
            self._ends_s[key] = max(end_s, self._ends_s.get(key, end_s))
        return is_new

    def get(self, key: str) -> bytes | None:
        """The value, or None if there is none."""
        return self._values.get(check_key(key))

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """The values in the order of their keys; None where there is none."""
        return [self.get(key) for key in keys]

    def list(self, prefix: str) -> Sequence[str]:
        """The keys below `prefix`, in order."""
        folder = f"{check_key(prefix)}/"
        with self._lock:
            return sorted(key for key in self._values if key.startswith(folder))

    def delete(self, prefix: str) -> None:
        """Removes the value at `prefix` and all below it."""
        folder = f"{check_key(prefix)}/"
        with self._lock:
            self._remove([k for k in self._values if k == prefix or k.startswith(folder)])

    def sweep(self) -> None:
        """Removes the values whose life is over."""
        now_s = self._clock()
        with self._lock:
            self._remove([key for key, end_s in self._ends_s.items() if end_s <= now_s])

    def close(self) -> None:
        """Does nothing."""

    def _remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            del self._values[key], self._ends_s[key]
