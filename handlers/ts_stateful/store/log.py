"""The log of a session in a store: adding to it, and reading it.

Owns what makes an entry one's own when answers get lost. Knows neither backends nor what entries mean to a model.
"""

from __future__ import annotations

from ts_stateful.store.base import Store, StoreCorrupt, StoreUnavailable
from ts_stateful.store.records import Entry, decode, encode, entry_key, session_prefix

__all__ = ["append", "forget", "num_entries", "read"]


def append(
    store: Store, session_id: str, position: int, entry: Entry, ttl_s: float | None = None
) -> bool:
    """Writes an entry at the position behind the last one that is known; False if somebody else did, and owns the session.

    A store may write a value and fail to say so. So where the position is taken, by these very bytes, it was this caller, in
    an earlier attempt; entries have a `writer`, so nobody else writes the same.

    Raises:
        StoreUnavailable: it is unknown whether the entry is there. Call again with the same entry.
    """
    key, data = entry_key(session_id, position), encode(entry)
    return store.create(key, data, ttl_s) or store.get(key) == data


def read(store: Store, session_id: str) -> list[Entry]:
    """All entries in order; none if there is no such session.

    Raises:
        StoreCorrupt: one is missing, damaged or of a newer version.
        StoreUnavailable: as the store says.
    """
    for _ in range(2):  # it may be removed while it is read, and is found to be gone then
        positions = range(num_entries(store, session_id))
        found = store.get_many([entry_key(session_id, position) for position in positions])
        values = [data for data in found if data is not None]
        if len(values) == len(positions):
            return [decode(data) for data in values]
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
