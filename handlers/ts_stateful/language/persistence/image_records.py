"""Images of sessions in the store: what the vision tower made of them, so that it need not run again.

Owns the names of an image's tensors at rest. Knows nothing of sessions.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ts_stateful.language.vision.encoder import ImageInput
from ts_stateful.protocol.errors import SessionNotFound
from ts_stateful.session_log.blobs import Tensor, get_tensors, put_tensors
from ts_stateful.session_log.records import ImageRef
from ts_stateful.store.base import Store, StoreCorrupt

__all__ = ["image_tensors", "load_image", "save_image"]

_FEATURE, _INPUT = "feature.", "input."


def image_tensors(image: ImageInput) -> dict[str, torch.Tensor]:
    """What an image is made of, by names under which it is made again."""
    tensors = {"ids": torch.tensor(image.ids)}
    if image.grid is not None:
        tensors["grid"] = image.grid
    if image.features is None:  # not seen yet
        return tensors | {f"{_INPUT}{name}": tensor for name, tensor in image.tensors.items()}
    features = enumerate(image.features)
    return tensors | {f"{_FEATURE}{index:02}": feature for index, feature in features}


def _at_rest(tensors: Mapping[str, torch.Tensor]) -> dict[str, Tensor]:
    made = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes()
        made[name] = Tensor(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)
    return made


def _in_use(tensor: Tensor) -> torch.Tensor:
    flat = torch.frombuffer(bytearray(tensor.data), dtype=getattr(torch, tensor.dtype))
    return flat.reshape(tensor.shape)


def save_image(store: Store, tensors: Mapping[str, torch.Tensor], ttl_s: float) -> str:
    """Writes what `image_tensors` gave; returns the digest by which it is found. Waits for the device and the store."""
    return put_tensors(store, _at_rest(tensors), ttl_s)


def load_image(store: Store, ref: ImageRef, device: torch.device) -> ImageInput:
    """The image of that reference, its embeddings on `device`.

    Raises:
        SessionNotFound: it was never written.
        StoreError: it is not there any more, or damaged, or the store does not answer.
    """
    if ref.embeddings is None:
        raise SessionNotFound(
            "the session has an image that is kept out of the store, and no engine has it any more:"
            " open a session again, with its images",
            field="session_id",
        )
    found = get_tensors(store, ref.embeddings)
    if found is None:
        raise StoreCorrupt(
            "an image of the session is not in the store any more",
            "the session cannot go on; let the store keep values for as long as sessions live",
        )
    tensors = {name: _in_use(tensor) for name, tensor in found.items()}
    ids, grid = tensors.pop("ids").tolist(), tensors.pop("grid", None)
    features = [tensors.pop(name) for name in sorted(tensors) if name.startswith(_FEATURE)]
    return ImageInput(
        key=ref.key or "",
        ids=ids,
        grid=grid,
        tensors={name.removeprefix(_INPUT): tensor for name, tensor in tensors.items()},
        features=tuple(feature.to(device) for feature in features) or None,
    )
