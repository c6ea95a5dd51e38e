"""Values in a store under the SHA-256 of their bytes."""

from __future__ import annotations

import hashlib

from ts_stateful.store.base import Store, StoreCorrupt

__all__ = ["get_blob", "put_blob"]


def put_blob(store: Store, folder: str, data: bytes, ttl_s: float | None = None) -> str:
    """Write a value unless it is there already; return its digest. Raises as `get_blob` does."""
    digest = hashlib.sha256(data).hexdigest()
    if not store.create(f"{folder}/{digest}", data, ttl_s):
        get_blob(store, folder, digest)  # the same bytes, unless they were damaged
    return digest


def get_blob(store: Store, folder: str, digest: str) -> bytes | None:
    """Return the value of that digest, or None if there is none.

    Raises:
        StoreCorrupt: it is not what was written.
        StoreUnavailable: see `Store`.
    """
    data = store.get(f"{folder}/{digest}")
    if data is not None and hashlib.sha256(data).hexdigest() != digest:
        raise StoreCorrupt(
            f"a value in {folder.partition('/')[0]}/ differs from its digest",
            "remove it, and open its session again; check the disk, and what else writes to the store",
        )
    return data
