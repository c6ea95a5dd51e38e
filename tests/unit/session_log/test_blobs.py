"""Values under their digests."""

from __future__ import annotations

import hashlib

import pytest

from tests.support.clock import FakeClock
from tests.support.memory_store import MemoryStore
from ts_stateful.session_log.blobs import get_blob, put_blob
from ts_stateful.store.base import StoreCorrupt


def test_values_come_back_as_they_were() -> None:
    """Under the digest of their bytes; the same ones are there once."""
    store = MemoryStore()
    digest = put_blob(store, "blobs", b"\x89PNG")
    assert digest == hashlib.sha256(b"\x89PNG").hexdigest()
    assert put_blob(store, "blobs", b"\x89PNG") == digest
    assert store.list("blobs") == [f"blobs/{digest}"]
    assert get_blob(store, "blobs", digest) == b"\x89PNG"
    assert get_blob(store, "blobs", "0" * 64) is None


def test_what_was_changed_is_refused() -> None:
    """Another value under the digest, which no session may name then."""
    store = MemoryStore()
    digest = hashlib.sha256(b"x").hexdigest()
    store.create(f"blobs/{digest}", b"other")
    with pytest.raises(StoreCorrupt, match="a value in blobs/ differs from its digest"):
        get_blob(store, "blobs", digest)
    with pytest.raises(StoreCorrupt):
        put_blob(store, "blobs", b"x")


def test_a_shared_blob_lives_as_long_as_its_last_session() -> None:
    """A session that comes later and lives longer prolongs it."""
    clock = FakeClock(0.0)
    store = MemoryStore(clock)
    digest = put_blob(store, "blobs", b"x", ttl_s=10)
    put_blob(store, "blobs", b"x", ttl_s=20)
    clock.now = 15.0
    store.sweep()
    assert get_blob(store, "blobs", digest) == b"x"
