"""Values in the memory of this process, for tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.store.base import Capacity, check_key

__all__ = ["MemoryStore"]


class MemoryStore:
    """A store that ends with its process."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        self._ends_s: dict[str, float] = {}

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        """See `Store`."""
        end_s = float("inf") if ttl_s is None else self._clock.monotonic() + ttl_s
        with self._lock:
            is_new = check_key(key) not in self._values
            self._values.setdefault(key, bytes(data))
            self._ends_s[key] = max(end_s, self._ends_s.get(key, end_s))
        return is_new

    def get(self, key: str) -> bytes | None:
        """See `Store`."""
        return self._values.get(check_key(key))

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """See `Store`."""
        return [self.get(key) for key in keys]

    def list(self, prefix: str) -> Sequence[str]:
        """See `Store`."""
        folder = f"{check_key(prefix)}/"
        with self._lock:
            return sorted(key for key in self._values if key.startswith(folder))

    def delete(self, prefix: str) -> None:
        """See `Store`."""
        folder = f"{check_key(prefix)}/"
        with self._lock:
            self._remove([k for k in self._values if k == prefix or k.startswith(folder)])

    def delete_keys(self, keys: Sequence[str]) -> None:
        """See `Store`."""
        with self._lock:
            self._remove([key for key in set(keys) if check_key(key) in self._values])

    def remove(self, key: str, data: bytes) -> None:
        """See `Store`."""
        with self._lock:
            if self._values.get(check_key(key)) == data:
                self._remove([key])

    def sweep(self) -> None:
        """See `Store`."""
        now_s = self._clock.monotonic()
        with self._lock:
            self._remove([key for key, end_s in self._ends_s.items() if end_s <= now_s])

    def capacity(self) -> Capacity:
        """See `Store`. This store has no bound."""
        return Capacity()

    def close(self) -> None:
        """Do nothing."""

    def _remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            del self._values[key], self._ends_s[key]
