"""The forward passes: prefill of one chunk, decode of one token a sequence.

Owns what a stock `transformers` model is called with. Knows sequences, but nothing of requests, scheduling or the table.
This is the general path: every sequence has a cache of its own, and a step runs them one after the other.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import torch
from torch import Tensor

from ts_stateful.engine.model import Model
from ts_stateful.engine.sequence import Sequence

__all__ = ["Runner"]


class Runner:
    """Runs one model on one device."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._network = model.network
        accepts = inspect.signature(self._network.forward).parameters
        self._options: dict[str, Any] = {"use_cache": True, "return_dict": True}
        if "logits_to_keep" in accepts:
            self._options["logits_to_keep"] = 1
        self._takes_positions = "position_ids" in accepts  # models with ALiBi do not
        self._rope_index = getattr(self._network.base_model, "get_rope_index", None)

    @torch.inference_mode()
    def prefill(self, sequence: Sequence, num_tokens: int) -> Tensor:
        """Computes the next `num_tokens` of a prompt; returns the logits `(vocabulary,)` behind them."""
        start = sequence.context.kv.length
        stop = start + num_tokens
        if self._model.vision is None or not sequence.all_images:
            return self._forward(sequence, start, stop, {})
        if sequence.image_mask is None:
            sequence.image_mask = self._model.vision.mask(sequence.ids, sequence.all_images)
        for piece_start, piece_stop in self._pieces(sequence, start, stop):
            logits = self._forward(
                sequence, piece_start, piece_stop, self._encoded(sequence, piece_start, piece_stop)
            )
        return logits

    @torch.inference_mode()
    def decode(self, sequence: Sequence) -> Tensor:
        """Feeds a sequence its last id; returns the logits `(vocabulary,)` behind it."""
        start = sequence.context.kv.length
        return self._forward(sequence, start, start + 1, {})

    def _pieces(self, sequence: Sequence, start: int, stop: int) -> list[tuple[int, int]]:
        """Cuts a chunk around image tokens that the model has generated: beside real ones they would be taken for them."""
        assert self._model.vision is not None
        assert sequence.image_mask is not None
        token, mask = self._model.vision.image_token_id, sequence.image_mask
        strays = [i for i in range(start, stop) if sequence.ids[i] == token and not mask[i]]
        if not any(mask[start:stop]):
            strays = []
        cuts = sorted({start, stop, *strays, *(stray + 1 for stray in strays)})
        return list(itertools.pairwise(cuts))

    def _encoded(self, sequence: Sequence, start: int, stop: int) -> dict[str, Any]:
        """The image embeddings that belong between ids `start` and `stop`."""
        vision, mask = self._model.vision, sequence.image_mask
        assert vision is not None
        assert mask is not None
        first = mask[:start].count(1)
        last = first + mask[start:stop].count(1)
        if first == last:
            return {}
        for image in sequence.all_images:
            if image.features is None:
                vision.encode(image)
        return {"mm_encoder_outputs": vision.outputs(sequence.all_images, first, last)}

    def _forward(self, sequence: Sequence, start: int, stop: int, inputs: dict[str, Any]) -> Tensor:
        if self._takes_positions:
            inputs["position_ids"] = self._positions(sequence, start, stop)
        output = self._network(
            input_ids=torch.tensor([sequence.ids[start:stop]], device=self._model.device),
            past_key_values=sequence.context.kv,
            **inputs,
            **self._options,
        )
        logits: Tensor = output.logits[0, -1]
        return logits

    def _positions(self, sequence: Sequence, start: int, stop: int) -> Tensor:
        """Positions of ids `start` to `stop`: `(1, n)`, or `(3, 1, n)` for models with M-RoPE."""
        device = self._model.device
        grids = [image.grid for image in sequence.all_images if image.grid is not None]
        index = torch.arange(start, stop, device=device).unsqueeze(0)
        if self._rope_index is None or not grids or sequence.image_mask is None:
            return index
        if sequence.positions is None:
            sequence.positions, _ = self._rope_index(
                torch.tensor([sequence.ids[: sequence.num_prompt]]),
                mm_token_type_ids=torch.tensor([list(sequence.image_mask)], dtype=torch.int),
                image_grid_thw=torch.cat(grids),
            )
        prompt: Tensor = sequence.positions  # (3, 1, num_prompt)
        if stop <= sequence.num_prompt:
            return prompt[..., start:stop].to(device)
        # Behind the prompt there is only text, whose positions go on from the highest one.
        return (index + int(prompt.max()) + 1 - sequence.num_prompt).expand(3, 1, -1)
