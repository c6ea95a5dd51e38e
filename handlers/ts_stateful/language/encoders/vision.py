"""Embeddings of images, by the processor and the vision tower of a stock vision-language model."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import PIL.Image
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from ts_stateful.config.schema import ConfigError
from ts_stateful.language.encoders.encoder import MediaInput, Tower
from ts_stateful.language.text.prompt_form import PromptForm
from ts_stateful.media.digest import content_digest
from ts_stateful.media.load import MediaFile

__all__ = ["Pictures", "PrefixVision", "Vision"]

_PIXELS = ("pixel_values", "pixel_values_images", "image_patches")
_UNPROJECTED = {"llama4"}  # families that project the features of images in every pass
# Families that only put the features of images among the embeddings of the text, and add further maps of them to the hidden
# states after the first layers.
_SPLICED = {
    *("glm4v", "idefics3", "internvl", "llava", "llava_next", "llava_onevision", "mistral3"),
    *("paligemma", "qwen2_5_omni_thinker", "qwen2_5_vl", "qwen2_vl", "qwen3_omni_moe_thinker"),
    *("qwen3_vl", "qwen3_vl_moe", "smolvlm"),
}
_SMALL, _LARGE = (60, 40), (640, 480)


class Pictures(Tower[PIL.Image.Image]):
    """The part of a model that sees; `tiling` is as `handler.imageTiling`."""

    kind, part = "images", "image"

    def __init__(self, network: PreTrainedModel, processor: Any, tiling: str | None = None) -> None:
        self._tiling = tiling
        super().__init__(network, processor, () if tiling is None else (tiling,))

    def _find_token(self, network: PreTrainedModel, processor: Any) -> tuple[str, int]:
        for owner, name in ((processor, "image_token"), (network.config, "image_token_id")):
            if getattr(owner, name, None) is None:
                raise ConfigError(f"{type(owner).__name__} has no {name}")
        return processor.image_token, network.config.image_token_id

    def decode(self, file: MediaFile) -> PIL.Image.Image:
        """See `Encoder`."""
        return file.decode_image()

    def key(self, decoded: PIL.Image.Image, *salts: str) -> str:
        """See `Encoder`."""
        return content_digest(decoded, *self._identity, *salts)

    def process(self, text: str, decoded: Sequence[PIL.Image.Image]) -> dict[str, Any]:
        """See `Encoder`."""
        bos = self._processor.tokenizer.bos_token
        has_bos = bos is not None and text.startswith(bos)
        return dict(
            self._processor(
                text=[text],
                images=self.arranged(decoded),
                return_tensors="pt",
                add_special_tokens=not has_bos,
            )
        )

    def arranged(self, images: Sequence[PIL.Image.Image]) -> list[Any]:
        """Return the images of one text as the processor takes them: in a list of their own, or each as if it were alone."""
        return list(images) if self._tiling == "each" else [list(images)]

    def samples(self) -> list[list[PIL.Image.Image]]:
        """See `Encoder`."""
        return [[_picture(size) for size in (_SMALL, large, _SMALL)] for large in (_LARGE, _SMALL)]


class Vision(Pictures):
    """The vision part of a model whose images are a part of its text."""

    def __init__(self, network: PreTrainedModel, processor: Any, tiling: str | None = None) -> None:
        self._tower = getattr(network.base_model, "get_image_features", None)
        accepts = inspect.signature(network.forward).parameters
        if self._tower is None or "mm_encoder_outputs" not in accepts:
            raise ConfigError(
                f"{type(network).__name__} does not accept precomputed image embeddings"
            )
        self._accepts = frozenset(inspect.signature(self._tower).parameters)
        tower = getattr(network.config, "vision_config", None)
        self._num_maps = 1 + len(getattr(tower, "deepstack_visual_indexes", None) or ())
        self._pooled_as_list = True
        self._output_type: Any = BaseModelOutputWithPooling
        self._output_name = "pooler_output"
        super().__init__(network, processor, tiling)
        if network.config.model_type in _UNPROJECTED:
            self._output_name = "last_hidden_state"
            self.token_bytes = (
                network.config.vision_config.vision_output_dim * network.dtype.itemsize
            )

    def prepare(self, decoded: PIL.Image.Image, key: str = "") -> MediaInput:
        """See `Encoder`."""
        copies = 2 if self._tiling == "none" else 1  # an image among several is not cut
        with self._lock:
            made = self._processor(
                text=[self.token * copies],
                images=self.arranged([decoded] * copies),
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
        return MediaInput(
            key=key,
            ids=made["input_ids"][0, : made["input_ids"].shape[1] // copies].tolist(),
            grid=made.get("image_grid_thw"),
            tensors=tensors,
        )

    def _features(self, image: MediaInput, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        assert self._tower is not None
        output = self._tower(**inputs, return_dict=True)
        embeddings = output[self._output_name]
        self._pooled_as_list = not isinstance(embeddings, Tensor)
        self._output_type = type(output)
        maps = [embeddings, *(output.get("deepstack_features") or ())]
        return tuple(
            torch.cat([part.reshape(-1, part.shape[-1]) for part in feature]) for feature in maps
        )

    def _inputs(self, stands: bytearray, maps: list[Tensor]) -> dict[str, Any]:
        if self._network.config.model_type in _SPLICED:
            return super()._inputs(stands, maps)
        wrapped = [[rows] if self._pooled_as_list else rows.unsqueeze(0) for rows in maps]
        deepstack = {"deepstack_features": wrapped[1:]} if len(wrapped) > 1 else {}
        given = {"last_hidden_state": None, self._output_name: wrapped[0], **deepstack}
        return {"mm_encoder_outputs": {"image": self._output_type(**given)}}


class PrefixVision(Vision):
    """The vision part of PaliGemma, whose processor writes a part of each prompt itself."""

    def __init__(self, network: PreTrainedModel, processor: Any) -> None:
        super().__init__(network, processor)
        self.form = PromptForm(processor.tokenizer.bos_token, "\n")

    def prepare(self, decoded: PIL.Image.Image, key: str = "") -> MediaInput:
        """See `Encoder`."""
        image = super().prepare(decoded, key)
        image.ids = [token for token in image.ids if token == self.token_id]
        return image

    def process(self, text: str, decoded: Sequence[PIL.Image.Image]) -> dict[str, Any]:
        """See `Encoder`; the processor writes the form again."""
        made = super().process(self.form.remove(text), decoded)
        made.pop("labels", None)  # for training
        return made


def _picture(size: tuple[int, int]) -> PIL.Image.Image:
    """Return a picture that is different everywhere."""
    gradients = [PIL.Image.linear_gradient("L").rotate(angle).resize(size) for angle in (0, 90)]
    return PIL.Image.merge("RGB", [*gradients, PIL.Image.radial_gradient("L").resize(size)])
