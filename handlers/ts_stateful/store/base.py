"""The contract of a store: verbs on bytes under keys, and their errors.

A key is 1 to 512 characters: segments between `/`, each 1 to 240 of `A-Z a-z 0-9 - _ .` but not `.` or `..`. A prefix is
whole segments too, so `sessions/a` does not cover `sessions/ab`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

__all__ = ["Capacity", "Store", "StoreCorrupt", "StoreError", "StoreUnavailable", "check_key"]

_MAX_KEY_CHARS = 512  # S3 takes 1024, its own prefix included
_SEGMENT = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9\-_.]{1,240}"  # a file name has at most 255
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")


class StoreError(Exception):
    """Base of a store's errors: `message` is the failure, `cure` the remedy for an operator."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(f"{message}: {cure}")
        self.message = message
        self.cure = cure


class StoreUnavailable(StoreError):
    """The store does not answer or cannot write now; the same call may succeed later.

    After a failed `create` it is unknown if the value was written, unless the store `is_full`.
    """

    def __init__(self, message: str, cure: str, *, is_full: bool = False) -> None:
        super().__init__(message, cure)
        self.is_full = is_full


class StoreCorrupt(StoreError):
    """The stored bytes are not those that were written, or have the format of an unknown version."""


class Capacity(NamedTuple):
    """The bytes that a store can hold, all its users together, and those of them that are free; 0 and 0 if it has no bound."""

    total_bytes: int = 0
    free_bytes: int = 0


class Store(Protocol):
    """Immutable values under keys. Any thread may call any method; all raise StoreUnavailable.

    Every process that uses the same store sees a created value, and always as a whole.
    """

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        """Write a value if the key is free. Return False, and leave the old value, if it is not.

        Of any number of callers, in any processes, exactly one gets True. The store keeps the value for at least `ttl_s`
        seconds (None: for ever) and may remove it at any time after that. A later call for the same key with a longer
        life prolongs it. So a value that several sessions share outlives the last of them.
        """

    def get(self, key: str) -> bytes | None:
        """Return the value, or None if there is none."""

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """Return the values in the order of their keys. A remote backend needs no round trip for each."""

    def list(self, prefix: str) -> Sequence[str]:
        """Return the keys below `prefix`, sorted."""

    def delete(self, prefix: str) -> None:
        """Remove the value at `prefix`, if there is one, and all below it. Idempotent."""

    def delete_keys(self, keys: Sequence[str]) -> None:
        """Remove the values of keys that are not used again, in any order. A remote backend needs no round trip for each."""

    def remove(self, key: str, data: bytes) -> None:
        """Remove the value if it is `data`. A call that failed and is carried out late spares what was written since."""

    def sweep(self) -> None:
        """Remove expired values, if the backend does not do so by itself. May take long."""

    def capacity(self) -> Capacity:
        """Return how full the store is."""

    def close(self) -> None:
        """Close connections. The store must not be used after this."""


def check_key(key: str) -> str:
    """Return a key or a prefix.

    Raises:
        ValueError: it has another form. Keys are made by this package, so this is a defect of it.
    """
    if len(key) > _MAX_KEY_CHARS or not _KEY.fullmatch(key):
        raise ValueError(f"not a key of the store: {key[:80]!r}")
    return key
