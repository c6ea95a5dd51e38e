"""The KV states of system prompts, computed once for all sessions that open with the same one.

Owns what of a context is such a prefix, and its name. Every session gets a copy of its own, so that nothing else need know
whether its beginning was computed or copied; a copy takes a small part of the time. Knows nothing of who keeps it.
"""

from __future__ import annotations

import contextlib
import hashlib
from array import array
from collections.abc import Callable, Sequence

import torch

from ts_stateful.language.kv.cache import KVCache

__all__ = ["Prefix", "prefix_key", "prefix_length"]

_MIN_TOKENS = 16  # a shorter one is computed with what follows in the same time


class Prefix:
    """The states of a context's first `length` tokens, from when the first session that has computed them lends its own."""

    def __init__(self, key: str, length: int) -> None:
        self.key = key
        self.length = length
        self._kv: KVCache | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        return self._kv.num_bytes if self._kv else 0

    def learn(self, kv: KVCache, make_room: Callable[[int], bool]) -> None:
        """Takes a copy of a session's states, if it has none yet and `make_room` has so many bytes on the device for one."""
        num_bytes = self.length * kv.token_bytes
        if self._kv is None and kv.length >= self.length and make_room(num_bytes):
            self._kv = self._copied(kv)

    def lend(self) -> KVCache | None:
        """A copy for a session that has no states, if there is one."""
        return self._copied(self._kv) if self._kv else None

    def _copied(self, kv: KVCache) -> KVCache | None:
        with contextlib.suppress(torch.OutOfMemoryError, MemoryError):  # it is computed then
            return kv.copy(self.length)
        return None


def prefix_length(opening: Sequence[int], image_token: int | None) -> int:
    """The ids of an opening that come before its first image; 0 where they are too few to be worth it."""
    ids = list(opening)
    length = ids.index(image_token) if image_token in ids else len(ids)
    return length if length >= _MIN_TOKENS else 0


def prefix_key(ids: Sequence[int], tenant: object = None) -> str:
    """Names a prefix by its ids, apart for each tenant, who could tell by the time whether another one has the same."""
    digest = hashlib.sha256(array("q", ids).tobytes())
    digest.update(b"" if tenant is None else repr(tenant).encode())
    return f"prefix {digest.hexdigest()}"
