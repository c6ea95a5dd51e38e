"""What a store is: a few verbs on bytes under keys, and what can go wrong.

Owns the contract that all backends share and the form of keys. Knows neither a backend nor what the bytes mean.

A key is 1 to 512 characters: segments between `/`, each 1 to 240 of `A-Z a-z 0-9 - _ .` but not `.` or `..`. A prefix is
whole segments too, so `sessions/a` has nothing to do with `sessions/ab`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

__all__ = ["Store", "StoreCorrupt", "StoreError", "StoreUnavailable", "check_key"]

_MAX_KEY_CHARS = 512  # S3 takes 1024, its own prefix included
_SEGMENT = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9\-_.]{1,240}"  # a file name has at most 255
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")


class StoreError(Exception):
    """Base of what a store raises. `message` says what happened, `cure` what an operator can do about it."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(f"{message}: {cure}")
        self.message = message
        self.cure = cure


class StoreUnavailable(StoreError):
    """The store does not answer or cannot write now; the same call may succeed later.

    Behind a `create` it is unknown whether the value was written.
    """


class StoreCorrupt(StoreError):
    """What is stored is not what was written, or was written by a version that this one does not know."""


class Store(Protocol):
    """Immutable values under keys. All methods may be called from any thread and raise StoreUnavailable.

    A value that was created is visible to every process that uses the same store, as a whole or not at all.
    """

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        """Writes a value if there is none under that key; False if there is one, which then stays as it is.

        Of any number of callers, in any processes, exactly one gets True. After `ttl_s` seconds (None: never) the store may
        forget the value, not before; when it does so is the backend's business. A later call for the same key that asks for
        a longer life prolongs it, so a value that several sessions share outlives the last of them.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """The value, or None if there is none."""
        ...

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """What `get` gives for each key, in their order, without a round trip for each where the backend is far away."""
        ...

    def list(self, prefix: str) -> Sequence[str]:
        """The keys below `prefix`, in order."""
        ...

    def delete(self, prefix: str) -> None:
        """Removes the value at `prefix`, if there is one, and all below it. A second time it does nothing."""
        ...

    def sweep(self) -> None:
        """Removes what its life is over of, where the backend does not do so by itself. Takes as long as it takes."""
        ...

    def close(self) -> None:
        """Gives back connections. The store must not be used any more."""
        ...


def check_key(key: str) -> str:
    """Returns a key or a prefix.

    Raises:
        ValueError: it has another form. Keys are made by this package, so that is a defect of it.
    """
    if len(key) > _MAX_KEY_CHARS or not _KEY.fullmatch(key):
        raise ValueError(f"not a key of the store: {key[:80]!r}")
    return key
