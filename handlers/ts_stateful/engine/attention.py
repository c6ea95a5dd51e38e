"""One forward pass over new tokens of many sessions, on a stock `transformers` model.

The new tokens of all sessions of a step lie behind one another in one row `(1, tokens)`. Everything in a transformer treats
tokens alike but the attention, and that is given here: the cache of a step writes every token into its own session's states
and hands the attention function those instead of tensors, by `AttentionInterface`, the library's own way of adding one. So
no session is padded, copied or moved, whatever the others are; one decode token and a chunk of a prompt are the same thing.

Owns the cache that models are called with and the attention. Knows nothing of requests or scheduling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ts_stateful.engine.kv import KVCache

__all__ = ["FLAT", "Span", "StepCache", "unused_mask"]

FLAT = "ts_stateful"  # the name of the attention function


class Span(NamedTuple):
    """New tokens of one session in a step: `num_tokens` of them behind the first `start`."""

    kv: KVCache
    start: int
    num_tokens: int

    @property
    def stop(self) -> int:
        """The session's tokens after the step."""
        return self.start + self.num_tokens


class StepCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """The KV states of the sessions of a step, as a model sees them; used for one step after the other.

    With `flat` the model's attention is `FLAT`, and any number of spans goes into one pass. Without, one span goes in, and
    the model gets tensors as from any cache of the library.
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[_Layer(self, index) for index in range(num_layers)])
        self.spans: Sequence[Span] = ()
        self._states: list[States] | None = None

    def begin(self, spans: Sequence[Span], *, flat: bool) -> None:
        """Makes room for the tokens of a step."""
        for span in spans:
            span.kv.reserve(span.stop)
        self.spans = spans
        masks = _Masks(spans)
        self._states = [States(i, spans, masks) for i in range(len(self.layers))] if flat else None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Writes keys and values, both `(1, heads, tokens, dim)`; returns what the attention reads."""
        if self._states is not None:
            states = self._states[layer_idx]
            states.write(key_states[0], value_states[0])
            return states, states
        (span,) = self.spans
        keys, values = span.kv.keys[layer_idx], span.kv.values[layer_idx]
        keys[:, span.start : span.stop] = key_states[0]
        values[:, span.start : span.stop] = value_states[0]
        return keys[None, :, : span.stop], values[None, :, : span.stop]


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """What stock code asks of one layer's cache when it makes a mask."""

    is_sliding = False  # everything is kept; the mask hides what is outside of a window
    is_croppable = False

    def __init__(self, step: StepCache, index: int) -> None:
        super().__init__()
        self._step = step
        self._index = index
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise NotImplementedError("the states of a session have their layout from the beginning")

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        return self._step.update(key_states, value_states, self._index)

    def get_seq_length(self) -> int:
        return self._step.spans[0].start

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


class States:
    """The keys and values of one layer, of all sessions of a step."""

    def __init__(self, layer: int, spans: Sequence[Span], masks: _Masks) -> None:
        self._layer = layer
        self._spans = spans
        self._masks = masks

    def write(self, keys: Tensor, values: Tensor) -> None:
        """Takes the new tokens' keys and values, `(heads, tokens, dim)`."""
        counts = [span.num_tokens for span in self._spans]
        targets: list[Tensor] = []
        for kv, start, count in self._spans:
            targets.append(kv.keys[self._layer].narrow(1, start, count))
            targets.append(kv.values[self._layer].narrow(1, start, count))
        new = zip(keys.split(counts, dim=1), values.split(counts, dim=1), strict=True)
        torch._foreach_copy_(targets, [part for pair in new for part in pair])

    def attend(self, query: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Attention of the new tokens' queries `(1, heads, tokens, dim)`; returns `(1, tokens, heads, value_dim)`.

        A token sees its own session's tokens up to itself, the last `window` of them if there is a window.
        """
        outputs = []
        queries = query.split([span.num_tokens for span in self._spans], dim=2)
        for index, (span, part) in enumerate(zip(self._spans, queries, strict=True)):
            first = max(0, span.start + 1 - window) if window else 0
            keys = span.kv.keys[self._layer][None, :, first : span.stop]
            values = span.kv.values[self._layer][None, :, first : span.stop]
            if span.num_tokens == 1:
                outputs.append(_attend_one(part, keys, values, scale))
            else:
                mask = self._masks.of(index, first, window)
                output = scaled_dot_product_attention(
                    part, keys, values, mask, is_causal=mask is None, scale=scale, enable_gqa=True
                )
                outputs.append(output.transpose(1, 2))
        return torch.cat(outputs, dim=1)


def _attend_one(query: Tensor, keys: Tensor, values: Tensor, scale: float | None) -> Tensor:
    """One token: the query heads that share a key head take the place of tokens, so that no key is read twice."""
    _, heads, _, dim = query.shape
    groups = query.reshape(1, keys.shape[1], -1, dim)
    output = scaled_dot_product_attention(groups, keys, values, scale=scale)
    return output.reshape(1, 1, heads, -1)


class _Masks:
    """What each token of a chunk may see, made once a step for all layers."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._made: dict[tuple[int, int | None], Tensor | None] = {}

    def of(self, index: int, first: int, window: int | None) -> Tensor | None:
        """`(num_tokens, stop - first)`: True where a token of span `index` sees a key; None for plain causal."""
        key = index, window
        if key not in self._made:
            self._made[key] = self._make(self._spans[index], first, window)
        return self._made[key]

    def _make(self, span: Span, first: int, window: int | None) -> Tensor | None:
        if span.start == first == 0 and (not window or span.num_tokens <= window):
            return None  # causal attention from the beginning needs no mask
        device = span.kv.device
        queries = torch.arange(span.start, span.stop, device=device).unsqueeze(1)
        keys = torch.arange(first, span.stop, device=device)
        mask = keys <= queries
        return mask & (keys > queries - window) if window else mask


def unused_mask(device: torch.device) -> Tensor:
    """A mask of four dimensions, which stock code hands on as it is instead of making one; `FLAT` does not look at it."""
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Any,
    value: Any,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function of the library's interface; with ordinary tensors it is the library's own."""
    if isinstance(key, States):
        return key.attend(query, scaling, sliding_window), None
    output: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, **kwargs
    )
    return output


AttentionInterface.register(FLAT, _attention)
AttentionMaskInterface.register(FLAT, sdpa_mask)
