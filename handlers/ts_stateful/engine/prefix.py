"""The KV states of system prompts, computed once for all sessions that open with the same one.

Owns what of a context is such a prefix, and its name. Every session gets a copy of its own, so that nothing else need know
whether its beginning was computed or copied; a copy takes a small part of the time. Knows nothing of who keeps it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from ts_stateful.engine.kv import KVCache

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

    def learn(self, kv: KVCache) -> None:
        """Takes a copy of a session's states, if it has none yet."""
        if self._kv is None and kv.length >= self.length:
            self._kv = kv.copy(self.length)

    def lend(self) -> KVCache | None:
        """A copy for a session that has no states, if there is one."""
        return self._kv.copy(self.length) if self._kv else None


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
