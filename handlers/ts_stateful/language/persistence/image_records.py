"""Images of sessions in the store, as the vision tower left them, so that it need not run again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.persistence.entries import ImageRef
from ts_stateful.protocol.errors import SessionNotFound
from ts_stateful.session_log.blobs import get_blob, put_blob
from ts_stateful.session_log.log import SessionLog
from ts_stateful.store.base import StoreCorrupt

__all__ = ["image_tensors", "load_image", "save_image"]

_SHARED = "blobs"  # where earlier programs wrote images, for all sessions that show them
_FEATURE, _INPUT = "feature.", "input."


def image_tensors(image: MediaInput) -> dict[str, torch.Tensor]:
    """Return the tensors from which `load_image` makes the image again."""
    tensors = {"ids": torch.tensor(image.ids)}
    if image.grid is not None:
        tensors["grid"] = image.grid
    if image.features is None:  # not encoded yet
        return tensors | {f"{_INPUT}{name}": tensor for name, tensor in image.tensors.items()}
    features = enumerate(image.features)
    return tensors | {f"{_FEATURE}{index:02}": feature for index, feature in features}


def save_image(
    log: SessionLog[Any], tensors: Mapping[str, torch.Tensor], origin: str, ttl_s: float
) -> str:
    """Write what `image_tensors` returned below a session's log; return the digest. Waits for the device and the store.

    With `origin`, the request that opened the session, no two sessions of one id have the same file.
    """
    # The format refuses tensors that share memory.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return put_blob(log.store, log.prefix, save(copies, {"origin": origin}), ttl_s)


def load_image(log: SessionLog[Any], ref: ImageRef, device: torch.device) -> MediaInput:
    """Return the image of that reference in a session's log, its embeddings on `device`.

    Raises:
        SessionNotFound: it was never written.
        StoreError: it is missing or damaged, or the store does not answer.
    """
    if ref.embeddings is None:
        raise SessionNotFound(
            "the session has an image that is kept out of the store, and no engine has it any more:"
            " open a session again, with its images",
            field="session_id",
        )
    data = get_blob(log.store, log.prefix, ref.embeddings)
    if data is None:
        data = get_blob(log.store, _SHARED, ref.embeddings)
    if data is None:
        raise StoreCorrupt(
            "an image of the session is missing in the store",
            "open a session again; let the store keep values for as long as sessions live",
        )
    try:
        tensors = load(data)
        ids = tensors.pop("ids")
        if ids.ndim != 1 or ids.is_floating_point():
            raise ValueError
    except (SafetensorError, KeyError, ValueError) as error:
        raise StoreCorrupt(
            "an image of the session cannot be read", "open a session again, with its images"
        ) from error
    grid = tensors.pop("grid", None)
    features = [tensors.pop(name) for name in sorted(tensors) if name.startswith(_FEATURE)]
    return MediaInput(
        key=ref.key or "",
        ids=ids.tolist(),
        grid=grid,
        tensors={name.removeprefix(_INPUT): tensor for name, tensor in tensors.items()},
        features=tuple(feature.to(device) for feature in features) or None,
    )
