"""Images of sessions in a store."""

from __future__ import annotations

import hashlib

import pytest
import torch
from safetensors.torch import load

from ts_stateful.language.persistence.entries import ImageRef
from ts_stateful.language.persistence.image_records import image_tensors, load_image, save_image
from ts_stateful.language.vision.encoder import ImageInput
from ts_stateful.protocol.errors import SessionNotFound
from ts_stateful.store.backends.memory import MemoryStore
from ts_stateful.store.base import StoreCorrupt

CPU = torch.device("cpu")
FEATURES = torch.arange(12, dtype=torch.float32).to(torch.bfloat16).reshape(3, 4)


def image(**fields: object) -> ImageInput:
    made = ImageInput(
        key="k",
        ids=[7, 7, 7],
        grid=torch.tensor([[1, 2, 2]]),
        tensors={"pixel_values": torch.ones(1, 3, 2, 2, dtype=torch.float16)},
        features=None,
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def stored(store: MemoryStore, made: ImageInput) -> ImageRef:
    return ImageRef(save_image(store, "blobs", image_tensors(made), 60.0), made.key, len(made.ids))


def test_an_image_comes_back_as_it_was() -> None:
    """Before and after it was encoded, of every type, and where features share memory."""
    store = MemoryStore()
    raw = load_image(store, "blobs", stored(store, image()), CPU)
    assert torch.equal(raw.tensors["pixel_values"], image().tensors["pixel_values"])
    assert (raw.key, raw.ids, raw.features) == ("k", [7, 7, 7], None)
    encoded = image(features=(FEATURES, FEATURES[1:], torch.zeros(0, 4)), tensors={})
    found = load_image(store, "blobs", stored(store, encoded), CPU)
    assert found.features is not None
    assert encoded.features is not None
    for one, other in zip(found.features, encoded.features, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)
    assert found.grid is not None
    assert found.grid.tolist() == [[1, 2, 2]]
    assert not found.tensors


def test_other_programs_read_the_same() -> None:
    """The bytes are a safetensors file under its digest, once for equal images."""
    store = MemoryStore()
    ref = stored(store, image(features=(FEATURES,), tensors={}))
    assert stored(store, image(features=(FEATURES.clone(),), tensors={})) == ref
    [key] = store.list("blobs")
    data = store.get(key)
    assert data is not None
    assert key == f"blobs/{hashlib.sha256(data).hexdigest()}"
    assert sorted(load(data)) == ["feature.00", "grid", "ids"]


def test_what_is_no_image_is_refused() -> None:
    """A value that is missing, or that is no file of tensors; an image that was kept out of the store is no defect."""
    store = MemoryStore()
    with pytest.raises(SessionNotFound, match="with its images"):
        load_image(store, "blobs", ImageRef(key="k", num_tokens=3), CPU)
    with pytest.raises(StoreCorrupt, match="missing"):
        load_image(store, "blobs", ImageRef("0" * 64), CPU)
    for data in (b"", b"\x80\x04.", b"\xff" * 8 + b"{}", b"\x02" + b"\x00" * 7 + b"{}"):
        digest = hashlib.sha256(data).hexdigest()
        store.create(f"blobs/{digest}", data)
        with pytest.raises(StoreCorrupt, match="cannot be read"):
            load_image(store, "blobs", ImageRef(digest), CPU)
