"""Embeddings of images, by the processor and the vision tower of a stock vision-language model."""

from __future__ import annotations

import copy
import enum
import inspect
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import PIL.Image
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from ts_stateful.config.schema import ConfigError
from ts_stateful.language.fingerprint import weights_digest
from ts_stateful.language.kv.spans import Block
from ts_stateful.media.digest import content_digest

__all__ = ["ImageInput", "LookAhead", "Vision"]

_IMAGES = re.compile(b"\1{2,}")


class LookAhead(enum.Enum):
    """The layers in which the tokens of an image see one another."""

    NONE = "none"
    WINDOWED = "windowed"
    ALL = "all"


_PIXELS = ("pixel_values", "pixel_values_images", "image_patches")


@dataclass(eq=False)
class ImageInput:
    """An image of a session, or of all sessions that show the same one.

    `key` names its content (see `Vision.key`). `ids` are the token ids that stand for it in the context. `tensors` is the
    processor's output, until `features` replace it: a tensor `(rows, hidden)` per feature map, the first for the image tokens
    themselves. A media thread makes the image. Afterwards only the engine's thread changes it, once.
    """

    key: str
    ids: list[int]
    grid: Tensor | None  # (1, 3): patches in time, height and width, for models with M-RoPE
    tensors: dict[str, Tensor]
    features: tuple[Tensor, ...] | None = field(default=None)

    @property
    def num_bytes(self) -> int:
        """Bytes of its embeddings on the device; 0 before they are computed."""
        return sum(int(feature.nbytes) for feature in self.features or ())


class Vision:
    """The vision part of a model; it encodes one image at a time."""

    def __init__(self, network: PreTrainedModel, processor: Any, tiling: str | None = None) -> None:
        # A copy for media threads, because two threads must not call one tokenizer at once.
        self._processor = copy.deepcopy(processor)
        self._lock = threading.Lock()
        self._identity = _identity(network, processor, tiling)
        self._tiling = tiling  # as `handler.imageTiling`
        self._network = network
        self._features = getattr(network.base_model, "get_image_features", None)
        accepts = inspect.signature(network.forward).parameters
        if self._features is None or "mm_encoder_outputs" not in accepts:
            raise ConfigError(
                f"{type(network).__name__} does not accept precomputed image embeddings"
            )
        for owner, name in ((processor, "image_token"), (network.config, "image_token_id")):
            if getattr(owner, name, None) is None:
                raise ConfigError(f"{type(owner).__name__} has no {name}")
        self._accepts = frozenset(inspect.signature(self._features).parameters)
        self.image_token: str = processor.image_token
        self.image_token_id: int = network.config.image_token_id
        config = network.config
        tower = getattr(config, "vision_config", None)
        deepstack = getattr(tower, "deepstack_visual_indexes", None) or ()
        width = config.get_text_config(decoder=True).hidden_size * (1 + len(deepstack))
        self._token_bytes: int = width * network.dtype.itemsize
        self._pooled_as_list = True
        self._output_type: Any = BaseModelOutputWithPooling
        self.look_ahead = LookAhead.NONE
        self.num_encoded = 0  # runs of the vision tower

    def unseen(self, images: Sequence[ImageInput]) -> dict[ImageInput, int]:
        """Return the images without embeddings, and the bytes that each will take on the device."""
        return {
            image: image.ids.count(self.image_token_id) * self._token_bytes
            for image in images
            if image.features is None
        }

    def key(self, image: PIL.Image.Image, *salts: str) -> str:
        """Return a name of the embeddings of an image, from its pixels and `salts`. For any thread."""
        return content_digest(image, *self._identity, *salts)

    def prepare(self, image: PIL.Image.Image, key: str = "") -> ImageInput:
        """Run the processor on the CPU. For any thread."""
        copies = 2 if self._tiling == "none" else 1  # an image among several is not cut
        with self._lock:
            made = self._processor(
                text=[self.image_token * copies],
                images=self.arranged([image] * copies),
                return_tensors="pt",
                add_special_tokens=False,
            )
        tensors = {
            name: tensor[:1] if copies > 1 else tensor
            for name, tensor in made.items()
            if name in self._accepts and isinstance(tensor, Tensor)
        }
        if not any(name in tensors for name in _PIXELS):
            raise ConfigError("the processor returns no pixels for the model")
        return ImageInput(
            key=key,
            ids=made["input_ids"][0, : made["input_ids"].shape[1] // copies].tolist(),
            grid=made.get("image_grid_thw"),
            tensors=tensors,
        )

    def process(self, text: str, images: Sequence[PIL.Image.Image]) -> dict[str, Any]:
        """Return what the stock processor makes of a rendered chat and its images, as it is meant to be used."""
        bos = self._processor.tokenizer.bos_token
        has_bos = bos is not None and text.startswith(bos)
        return dict(
            self._processor(
                text=[text],
                images=self.arranged(images),
                return_tensors="pt",
                add_special_tokens=not has_bos,
            )
        )

    def arranged(self, images: Sequence[PIL.Image.Image]) -> list[Any]:
        """Return the images of one text as the processor takes them: in a list of their own, or each as if it were alone."""
        return list(images) if self._tiling == "each" else [list(images)]

    def encode(self, image: ImageInput) -> None:
        """Run the vision tower: replace `tensors` by `features`. After an error the image is unchanged."""
        device, dtype = self._network.device, self._network.dtype
        inputs = {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None)
            for name, tensor in image.tensors.items()
        }
        assert self._features is not None
        output = self._features(**inputs, return_dict=True)
        self.num_encoded += 1
        self._pooled_as_list = not isinstance(output.pooler_output, Tensor)
        self._output_type = type(output)
        maps = [output.pooler_output, *(output.get("deepstack_features") or ())]
        features = tuple(
            torch.cat([part.reshape(-1, part.shape[-1]) for part in feature]) for feature in maps
        )
        expected = image.ids.count(self.image_token_id)
        if features[0].shape[0] != expected:
            raise RuntimeError(f"{features[0].shape[0]} image features for {expected} tokens")
        image.features, image.tensors = features, {}

    def mask(self, ids: Sequence[int], images: Sequence[ImageInput]) -> bytearray:
        """Return 1 for every id that stands for a part of an image; a generated image token gets 0."""
        mask = bytearray(len(ids))
        at = 0
        for image in images:
            marks = self._core(image.ids)
            span = len(marks)
            while at <= len(ids) - span and (ids[at] != marks[0] or ids[at : at + span] != marks):
                at += 1
            for index in range(at, min(at + span, len(ids))):
                mask[index] = ids[index] == self.image_token_id
            at += span
        return mask

    def _core(self, ids: list[int]) -> list[int]:
        """Return the ids of an image without those before and after it, which may be tokenized otherwise beside a text."""
        first, last = ids.index(self.image_token_id), ids[::-1].index(self.image_token_id)
        return ids[first : len(ids) - last]

    def blocks(self, mask: bytearray) -> list[Block]:
        """Return the runs of image tokens that see one another; none if the model's see only backwards."""
        if self.look_ahead is LookAhead.NONE:
            return []
        only_windowed = self.look_ahead is LookAhead.WINDOWED
        return [Block(*match.span(), only_windowed) for match in _IMAGES.finditer(mask)]

    def features(self, images: Sequence[ImageInput], start: int, stop: int) -> list[Tensor]:
        """Return the embeddings of image tokens `start` to `stop`, counted over `images`.

        There is one tensor `(tokens, hidden)` per feature map. Runs the vision tower for images without embeddings.
        """
        parts = []
        at = 0
        for image in images:
            count = image.ids.count(self.image_token_id)
            first, last = max(0, start - at), min(count, stop - at)
            if first < last:
                if image.features is None:
                    self.encode(image)
                assert image.features is not None
                parts.append([feature[first:last] for feature in image.features])
            at += count
        return [torch.cat(rows) for rows in zip(*parts, strict=True)]

    def outputs(self, parts: Sequence[Sequence[Tensor]]) -> dict[str, Any]:
        """Return encoder outputs in which a model finds `features`, those of several sequences concatenated."""
        rows = [torch.cat(features) for features in zip(*parts, strict=True)]
        wrapped = [[row] if self._pooled_as_list else row.unsqueeze(0) for row in rows]
        deepstack = {"deepstack_features": wrapped[1:]} if len(wrapped) > 1 else {}
        return {"image": self._output_type(pooler_output=wrapped[0], **deepstack)}


def _identity(network: PreTrainedModel, processor: Any, tiling: str | None) -> tuple[str, ...]:
    """Return what the embeddings of an image depend on besides the image."""
    tiles = () if tiling is None else (tiling,)
    return (processor.to_json_string(), weights_digest(network), str(network.dtype), *tiles)
