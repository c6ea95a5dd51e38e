"""Images of sessions in a store."""

from __future__ import annotations

import hashlib

import pytest
import torch
from safetensors.torch import load, save

from tests.support.memory_store import MemoryStore
from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.persistence.entries import ImageRef, LogEntry, session_logs
from ts_stateful.language.persistence.image_records import image_tensors, load_image, save_image
from ts_stateful.protocol.errors import SessionNotFound
from ts_stateful.session_log.log import SessionLog
from ts_stateful.store.base import StoreCorrupt

CPU = torch.device("cpu")
FEATURES = torch.arange(12, dtype=torch.float32).to(torch.bfloat16).reshape(3, 4)


def image(**fields: object) -> MediaInput:
    made = MediaInput(
        key="k",
        ids=[7, 7, 7],
        grid=torch.tensor([[1, 2, 2]]),
        tensors={"pixel_values": torch.ones(1, 3, 2, 2, dtype=torch.float16)},
        features=None,
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def log_of(store: MemoryStore, session_id: str = "a") -> SessionLog[LogEntry]:
    return session_logs(store).log(session_id)


def stored(
    store: MemoryStore, made: MediaInput, session_id: str = "a", origin: str = "r"
) -> ImageRef:
    digest = save_image(log_of(store, session_id), image_tensors(made), origin, 60.0)
    return ImageRef(digest, made.key, len(made.ids))


def test_an_image_comes_back_as_it_was() -> None:
    """Before and after it was encoded, of every type, and where features share memory."""
    store = MemoryStore()
    raw = load_image(log_of(store), stored(store, image()), CPU)
    assert torch.equal(raw.tensors["pixel_values"], image().tensors["pixel_values"])
    assert (raw.key, raw.ids, raw.features) == ("k", [7, 7, 7], None)
    encoded = image(features=(FEATURES, FEATURES[1:], torch.zeros(0, 4)), tensors={})
    found = load_image(log_of(store), stored(store, encoded), CPU)
    assert found.features is not None
    assert encoded.features is not None
    for one, other in zip(found.features, encoded.features, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)
    assert found.grid is not None
    assert found.grid.tolist() == [[1, 2, 2]]
    assert not found.tensors


def test_other_programs_read_the_same() -> None:
    """The bytes are a safetensors file under its digest, once for equal images of a session."""
    store = MemoryStore()
    ref = stored(store, image(features=(FEATURES,), tensors={}))
    assert stored(store, image(features=(FEATURES.clone(),), tensors={})) == ref
    [key] = store.list("sessions/a")
    data = store.get(key)
    assert data is not None
    assert key == f"sessions/a/{hashlib.sha256(data).hexdigest()}"
    assert sorted(load(data)) == ["feature.00", "grid", "ids"]


def test_what_is_no_image_is_refused() -> None:
    """A value that is missing, or that is no file of tensors; an image that was kept out of the store is no defect."""
    store = MemoryStore()
    with pytest.raises(SessionNotFound, match="with its images"):
        load_image(log_of(store), ImageRef(key="k", num_tokens=3), CPU)
    with pytest.raises(StoreCorrupt, match="missing"):
        load_image(log_of(store), ImageRef("0" * 64), CPU)
    strange = ([[1], [2]], 1, [0.5])
    files = [save({"ids": torch.tensor(ids)}) for ids in strange]
    for data in (*files, b"", b"\x80\x04.", b"\xff" * 8 + b"{}", b"\x02" + b"\x00" * 7 + b"{}"):
        digest = hashlib.sha256(data).hexdigest()
        store.create(f"sessions/a/{digest}", data)
        with pytest.raises(StoreCorrupt, match="cannot be read"):
            load_image(log_of(store), ImageRef(digest), CPU)


def test_sessions_share_no_image() -> None:
    """Each has its own, also one that begins again under the id of another; so removing one takes nothing from another."""
    store = MemoryStore()
    made = image(features=(FEATURES,), tensors={})
    refs = {stored(store, made, "a"), stored(store, made, "b"), stored(store, made, "a", "later")}
    assert len(store.list("sessions/a")) == 2
    assert len(store.list("sessions/b")) == 1
    assert len(refs) == 2
    with pytest.raises(StoreCorrupt, match="missing"):
        load_image(log_of(store, "c"), refs.pop(), CPU)


def test_an_image_of_an_earlier_program_is_read() -> None:
    """It wrote those of all sessions to one place."""
    store = MemoryStore()
    ref = stored(store, image(features=(FEATURES,), tensors={}))
    [key] = store.list("sessions/a")
    data = store.get(key)
    assert data is not None
    store.delete(key)
    store.create(f"blobs/{ref.embeddings}", data)
    assert load_image(log_of(store), ref, CPU).key == "k"
