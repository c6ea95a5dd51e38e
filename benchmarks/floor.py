"""The floor: the bare forward passes of stock `transformers` on kept caches.

There is no server, no sampling except the largest logit, and no text. Every pass is timed with both caches that stock users
have: `DynamicCache` copies its content with every step, `StaticCache` masks its spare room. The faster one is the floor. Caches
are filled before the clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, DynamicCache, PreTrainedModel, StaticCache
from transformers.utils.logging import disable_progress_bar

from ts_stateful.language.network.layout import cache_name

__all__ = ["Floor"]

_WARM_UPS = 2


class Floor:
    """The model, which may be the folder of one, and the caches. Every method returns milliseconds."""

    def __init__(self, model: Path | PreTrainedModel, threads: int) -> None:
        torch.set_num_threads(threads)
        disable_progress_bar()
        if isinstance(model, Path):
            model = AutoModelForImageTextToText.from_pretrained(model).eval()
        self._model: Any = model
        self._cache_name = cache_name(model)
        text = self._model.config.get_text_config()
        self._num_layers: int = text.num_hidden_layers
        heads = text.num_key_value_heads
        dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        window = text.max_position_embeddings
        # The values of the states do not affect the time.
        states = torch.randn(2, self._num_layers, 1, heads, window, dim)
        self._keys, self._values = states[0], states[1]  # (layers, 1, kv_heads, window, head_dim)

    def first_token(self, history: int, num_new: int, cache: str) -> float:
        """Prefill `num_new` tokens after `history` kept ones, and choose the next token."""
        kept = self._filled(cache, 1, history, num_new)
        ids = _random_ids(1, num_new)
        return _timed_ms(lambda: self._next_ids(kept, input_ids=ids))

    def decode(self, num_rows: int, history: int, num_steps: int, cache: str) -> float:
        """Decode steps of `num_rows` rows; return the mean of `num_steps`, beginning with `history` tokens in each."""
        kept = self._filled(cache, num_rows, history, num_steps + _WARM_UPS)
        ids = _random_ids(num_rows, 1)
        for _ in range(_WARM_UPS):
            ids = self._next_ids(kept, input_ids=ids)

        def steps() -> None:
            nonlocal ids
            for _ in range(num_steps):
                ids = self._next_ids(kept, input_ids=ids)

        return _timed_ms(steps) / num_steps

    def open_image(self, num_tokens: int, cache: str) -> float:
        """Run the vision tower, the projector and the prefill of an opening of `num_tokens`."""
        side = self._model.config.vision_config.image_size
        pixels = torch.randn(1, 3, side, side)
        ids = _random_ids(1, num_tokens)
        ids[0, -self._num_image_tokens :] = self._model.config.image_token_id
        kept = self._filled(cache, 1, 0, num_tokens)
        return _timed_ms(lambda: self._next_ids(kept, input_ids=ids, pixel_values=pixels))

    def encode_image(self) -> float:
        """Run the vision tower and the projector alone."""
        side = self._model.config.vision_config.image_size
        pixels = torch.randn(1, 3, side, side)
        with torch.inference_mode():
            return _timed_ms(lambda: self._model.get_image_features(pixel_values=pixels))

    def open_prefill(self, num_tokens: int, cache: str) -> float:
        """Run only the prefill of an opening of `num_tokens`, from given embeddings."""
        width = self._model.config.text_config.hidden_size
        embeddings = torch.randn(1, num_tokens, width)
        kept = self._filled(cache, 1, 0, num_tokens)
        return _timed_ms(lambda: self._next_ids(kept, inputs_embeds=embeddings))

    @property
    def _num_image_tokens(self) -> int:
        vision = self._model.config.vision_config
        return int((vision.image_size // vision.patch_size) ** 2)

    @torch.inference_mode()
    def _next_ids(self, cache: Any, **inputs: Any) -> Tensor:
        inputs[self._cache_name] = cache
        logits = self._model(**inputs, logits_to_keep=1).logits
        ids: Tensor = logits[:, -1:].argmax(-1)
        ids.tolist()  # as streaming requires
        return ids

    @torch.inference_mode()
    def _filled(self, kind: str, num_rows: int, history: int, spare: int) -> Any:
        config = self._model.config.get_text_config()
        made: Any = DynamicCache(config=config)
        if kind == "static":
            made = StaticCache(config=config, max_cache_len=history + spare)
        for layer in range(self._num_layers if history else 0):
            keys = self._keys[layer, :, :, :history].repeat(num_rows, 1, 1, 1)
            values = self._values[layer, :, :, :history].repeat(num_rows, 1, 1, 1)
            made.update(keys, values, layer)
        return made


def _timed_ms(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - begin)


def _random_ids(*shape: int) -> Tensor:
    return torch.randint(100, 1000, shape)
