"""The log of a session in a store: adding to it, and reading it.

Owns what makes an entry one's own when answers get lost. Knows neither backends nor what entries mean to a model.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from ts_stateful.session_log.records import Entry, decode, encode, entry_key, session_prefix
from ts_stateful.store.base import Store, StoreCorrupt, StoreUnavailable

__all__ = ["Known", "Log", "append", "forget", "num_entries", "read"]


class Known(NamedTuple):
    """A log as far as somebody knows it: how many entries, and which is the last one."""

    num_entries: int = 0
    last: bytes = b""  # its digest

    def is_in(self, store: Store, session_id: str) -> bool:
        """Whether the log has these entries, and may have more."""
        if not self.num_entries:
            return True
        data = store.get(entry_key(session_id, self.num_entries - 1))
        return data is not None and _digest(data) == self.last


class Log(NamedTuple):
    """All entries of a session in order."""

    entries: list[Entry]
    known: Known


def append(
    store: Store, session_id: str, known: Known, entry: Entry, ttl_s: float | None = None
) -> Known | None:
    """Writes an entry behind those that are known, and returns what is known then; None if somebody else owns the session.

    They have written an entry there before, or removed the session: it has ended then, and what has its id by now is another
    one. So what is known is looked for when the entry is written, which is taken back if that is not there.

    A store may write a value and fail to say so. So where the position is taken, by these very bytes, it was this caller, in
    an earlier attempt; entries have a `writer`, so nobody else writes the same.

    Raises:
        StoreUnavailable: it is unknown whether the entry is there. Call again with the same entry.
    """
    key, data = entry_key(session_id, known.num_entries), encode(entry)
    if not store.create(key, data, ttl_s) and store.get(key) != data:
        return None
    if not known.is_in(store, session_id):
        store.delete(key)
        return None
    return Known(known.num_entries + 1, _digest(data))


def read(store: Store, session_id: str) -> Log:
    """The log of a session; without entries if there is none.

    Raises:
        StoreCorrupt: one is missing, damaged or of a newer version.
        StoreUnavailable: as the store says.
    """
    for _ in range(2):  # it may be removed while it is read, and is found to be gone then
        positions = range(num_entries(store, session_id))
        found = store.get_many([entry_key(session_id, position) for position in positions])
        values = [data for data in found if data is not None]
        if len(values) == len(positions):
            last = _digest(values[-1]) if values else b""
            return Log([decode(data) for data in values], Known(len(values), last))
    raise StoreUnavailable("a session was removed while it was read", "read it again")


def forget(store: Store, session_id: str) -> None:
    """Removes the log. Blobs stay: other sessions may show the same images."""
    store.delete(session_prefix(session_id))


def num_entries(store: Store, session_id: str) -> int:
    """How many entries there are; 0 if there is no such session.

    Raises:
        StoreCorrupt: one is missing.
        StoreUnavailable: as the store says.
    """
    # A listing may miss what is added while it is made, and have what is added after that. A second one has all that was
    # there when the first one ended.
    for _ in range(2):
        keys = store.list(session_prefix(session_id))
        if entry_key(session_id, 0) not in keys:
            return 0  # what is left where a removal was interrupted is no session
        if keys[-1] == entry_key(session_id, len(keys) - 1):
            return len(keys)
    raise StoreCorrupt(
        "the log of a session has gaps",
        "the session cannot go on; close it, and look who else removes from the store",
    )


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
