"""Images that layers of a model attend to beside the text, as in Llama 3.2 Vision."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import PIL.Image
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ts_stateful.language.encoders.encoder import MediaInput, Shown
from ts_stateful.language.encoders.vision import Pictures
from ts_stateful.language.kernels.beside import ImageStates, Run, exchange_beside

__all__ = ["VisionBeside"]

_INPUTS = ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")


class VisionBeside(Pictures):
    """The vision part of a model with such layers.

    One token stands for an image. Its features are the keys and values of every such layer in turns, `(heads, rows, dim)`; its
    grid has the number of its tiles. Stock code lets the tokens before the first image attend to all images of a conversation,
    so all states of a session depend on all of its images (see `key_of`).
    """

    is_beside = True

    def __init__(self, network: PreTrainedModel, processor: Any) -> None:
        config, decoder = network.config.get_text_config(decoder=True), network.get_decoder()
        self._layers = [decoder.layers[at].cross_attn for at in config.cross_attention_layers]
        exchange_beside(self._layers)
        super().__init__(network, processor)
        self._tile_rows: int = network.base_model.vision_model.num_patches
        width = config.num_key_value_heads * config.hidden_size // config.num_attention_heads
        num_rows = self._tile_rows * network.config.vision_config.max_num_tiles
        self.token_bytes = 2 * len(self._layers) * num_rows * width * network.dtype.itemsize

    @staticmethod
    def key_of(images: Sequence[MediaInput], mask: bytearray | None) -> tuple[str, ...]:
        """See `Encoder`; it names those that stand in the context."""
        return tuple(image.key for image in images[: mask.count(1) if mask else 0])

    def prepare(self, decoded: PIL.Image.Image, key: str = "") -> MediaInput:
        """See `Encoder`."""
        with self._lock:
            made = self._processor(images=[[decoded]], return_tensors="pt")
        grid = torch.tensor([[1, 1, int(made["aspect_ratio_mask"].sum())]])
        return MediaInput(key, [self.token_id], grid, {name: made[name] for name in _INPUTS})

    def _features(self, image: MediaInput, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        model = self._network.base_model
        seen = model.multi_modal_projector(model.vision_model(**inputs).last_hidden_state)
        states, found = seen.reshape(1, -1, seen.shape[-1]), []
        for layer in self._layers:
            shape = (1, states.shape[1], layer.num_key_value_heads, layer.head_dim)
            keys, values = layer.k_proj(states).view(shape), layer.v_proj(states).view(shape)
            found += [layer.k_norm(keys.transpose(1, 2)), values.transpose(1, 2)]
        return tuple(each[0].contiguous() for each in found)

    def _count(self, features: tuple[Tensor, ...]) -> int:
        return 1

    def inputs(self, parts: Sequence[Shown]) -> dict[str, Any]:
        """See `Encoder`; there are none if no session has images."""
        runs = [run for part in parts for run in self._runs(part)]
        if not any(run.parts for run in runs):
            return {}
        sees = [bool(run.parts) and not run.looks_on for run in runs for _ in range(run.num_tokens)]
        mask = torch.tensor(sees, dtype=torch.long, device=self._network.device)
        return {
            "cross_attention_states": ImageStates(runs),
            "cross_attention_mask": mask[None, :, None, None],
        }

    def _runs(self, part: Shown) -> Iterator[Run]:
        """Yield runs of tokens that attend to the last image before them, and to those adjacent to it."""
        places = [found.start() for found in re.finditer(b"\1", part.mask or b"")]
        shown = [(self._encoded(image), image) for image in part.images[: len(places)]]
        ends = {part.start, part.stop, *(at for at in places if part.start < at < part.stop)}
        for start, stop in itertools.pairwise(sorted(ends)):
            last = bisect.bisect_right(places, start)
            if not last:
                parts = [(features, features[0].shape[1]) for features, _ in shown]
                yield Run(stop - start, parts, looks_on=True)
                continue
            first = last - 1
            while first and places[first - 1] == places[first] - 1:
                first -= 1
            yield Run(
                stop - start,
                [(features, self._num_rows(image)) for features, image in shown[first:last]],
            )

    def _num_rows(self, image: MediaInput) -> int:
        assert image.grid is not None
        return int(image.grid[0, 2]) * self._tile_rows
