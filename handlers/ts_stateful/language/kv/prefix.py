"""The KV states of system prompts, computed once for all sessions that open with the same one."""

from __future__ import annotations

import contextlib
import hashlib
from array import array
from collections.abc import Callable, Collection, Sequence

import torch

from ts_stateful.language.kv.cache import KVCache

__all__ = ["MIN_TOKENS", "Prefix", "prefix_key", "prefix_length"]

MIN_TOKENS = 16  # computing a shorter one takes no additional time


class Prefix:
    """The states of a context's first `length` tokens, from the first session that computed them.

    Every session gets its own copy, which takes a small part of the time of computing it.
    """

    def __init__(self, key: str, length: int) -> None:
        self.key = key
        self.length = length
        self._kv: KVCache | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        return self._kv.num_bytes if self._kv else 0

    def learn(self, kv: KVCache, make_room: Callable[[int], bool]) -> None:
        """Copy a session's states, if none are held yet and `make_room` has the bytes for them on the device."""
        num_bytes = kv.most_bytes(self.length)
        if self._kv is None and kv.length >= self.length and make_room(num_bytes):
            self._kv = self._copied(kv)

    def lend(self) -> KVCache | None:
        """Return a copy for a session without states, if there is one."""
        return self._copied(self._kv) if self._kv else None

    def _copied(self, kv: KVCache) -> KVCache | None:
        with contextlib.suppress(torch.OutOfMemoryError, MemoryError):  # it is computed then
            copy = kv.copy(self.length)
            return copy if copy.length == self.length else None
        return None


def prefix_length(opening: Sequence[int], media_tokens: Collection[int]) -> int:
    """Return the number of ids of an opening before its first image; 0 where sharing does not pay."""
    length = next((at for at, token in enumerate(opening) if token in media_tokens), len(opening))
    return length if length >= MIN_TOKENS else 0


def prefix_key(ids: Sequence[int], owner: object = None) -> str:
    """Return a name of a prefix from its ids.

    Tenants get different names, because the time of an opening would reveal another tenant's prompt. So do adapters, which
    compute other states.
    """
    digest = hashlib.sha256(array("q", ids).tobytes())
    digest.update(b"" if owner is None else repr(owner).encode())
    return f"prefix {digest.hexdigest()}"
