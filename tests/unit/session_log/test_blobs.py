"""Tensors and files in a store."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from tests.support.clock import FakeClock
from ts_stateful.session_log.blobs import Tensor, get_media, get_tensors, put_media, put_tensors
from ts_stateful.store.backends.memory import MemoryStore
from ts_stateful.store.base import StoreCorrupt

TENSORS = {
    "grid": Tensor("int64", (1, 3), np.arange(3, dtype="<i8").tobytes()),
    "features.0": Tensor("bfloat16", (2, 3), bytes(range(12))),
    "none": Tensor("float32", (0, 4), b""),
    "one": Tensor("float16", (), b"\x00\x3c"),
}


def test_tensors_come_back_as_they_were() -> None:
    """Of every type, also bfloat16, empty and without dimensions; the same ones are there once."""
    store = MemoryStore()
    digest = put_tensors(store, TENSORS)
    assert put_tensors(store, dict(reversed(TENSORS.items()))) == digest
    assert store.list("blobs") == [f"blobs/{digest}"]
    assert get_tensors(store, digest) == TENSORS
    assert get_tensors(store, "0" * 64) is None


def test_other_programs_read_the_same() -> None:
    """The bytes are a safetensors file."""
    store = MemoryStore()
    data = store.get(f"blobs/{put_tensors(store, TENSORS)}")
    assert data is not None
    loaded = load(data)
    assert loaded["grid"].tolist() == [[0, 1, 2]]
    assert loaded["features.0"].view(torch.uint8).flatten().tolist() == list(range(12))
    written = save({"a": torch.ones(2, dtype=torch.bfloat16)})
    store.create(f"blobs/{hashlib.sha256(written).hexdigest()}", written)
    assert get_tensors(store, hashlib.sha256(written).hexdigest()) == {
        "a": Tensor("bfloat16", (2,), b"\x80\x3f\x80\x3f")
    }


def test_files_come_back_as_they_were() -> None:
    """Under the digest of their bytes."""
    store = MemoryStore()
    digest = put_media(store, b"\x89PNG")
    assert digest == hashlib.sha256(b"\x89PNG").hexdigest()
    assert put_media(store, b"\x89PNG") == digest
    assert get_media(store, digest) == b"\x89PNG"
    assert get_media(store, "0" * 64) is None


def test_what_was_changed_is_refused() -> None:
    """Something else under the digest, or something under its own digest that is no tensors."""
    store = MemoryStore()
    store.create(f"media/{'0' * 64}", b"other")
    with pytest.raises(StoreCorrupt, match="not what was written"):
        get_media(store, "0" * 64)
    for data in (b"", b"\x80\x04.", b"\xff" * 8 + b"{}", b"\x02" + b"\x00" * 7 + b"[]"):
        digest = hashlib.sha256(data).hexdigest()
        store.create(f"blobs/{digest}", data)
        with pytest.raises(StoreCorrupt):
            get_tensors(store, digest)


def test_a_shared_blob_lives_as_long_as_its_last_session() -> None:
    """A session that comes later and lives longer prolongs it."""
    clock = FakeClock(0.0)
    store = MemoryStore(clock)
    digest = put_media(store, b"x", ttl_s=10)
    put_media(store, b"x", ttl_s=20)
    clock.now = 15.0
    store.sweep()
    assert get_media(store, digest) == b"x"
