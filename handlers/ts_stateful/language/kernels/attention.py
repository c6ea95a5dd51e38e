"""Attention over the new tokens of many sessions, in one forward pass of a stock `transformers` model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ts_stateful.language.kv.spans import Span, Table

__all__ = ["FLAT", "Kernels", "Rule", "States", "StepCache", "unused_mask"]

FLAT = "ts_stateful"  # the name of the attention function
_INVALID_LENGTH = 1_000_003


class Kernels(Protocol):
    """Operations of a device that serve all sessions of a step in one call; they read a table on the device."""

    def write(self, keys: Tensor, values: Tensor, table: Table, layer: int) -> None:
        """Store the keys and values of all new tokens, `(heads, tokens, dim)`, in their sessions' states."""

    def attend(
        self, query: Tensor, table: Table, layer: int, rule: Rule, window: int | None
    ) -> Tensor:
        """Return the attention of tokens that are alone in their span, over all tokens up to themselves.

        `query` is `(heads, tokens, dim)`, the result `(tokens, heads, value_dim)`. The caller sets the other tokens' rows.
        """
        ...


class StepCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """The KV states of a step's sessions, as a model sees them; reused for every step.

    With `flat` the model's attention is `FLAT`, the library's own extension point (`AttentionInterface`). The new tokens of all
    sessions follow one another in one row `(1, tokens)`. Only attention treats sessions apart: it receives their states instead
    of tensors. So no session is padded, copied or moved, and a decode token and a chunk of a prompt take the same path.
    `kernels`, if set, compute it. Without `flat`, one span goes in, and the model gets tensors as from any cache of the
    library.
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[_Layer(self, index) for index in range(num_layers)])
        self.kernels: Kernels | None = None
        self.spans: Sequence[Span] = ()
        self.states: list[States] | None = None

    def begin(self, spans: Sequence[Span], *, flat: bool) -> None:
        """Make room for the tokens of a step."""
        for span in spans:
            span.kv.reserve(span.stop)
        self.spans = spans
        masks = _Masks(spans)
        table = Table.of(spans).on(spans[0].kv.device) if flat and self.kernels else None
        layers = range(len(self.layers))
        self.states = (
            [States(i, spans, masks, self.kernels, table) for i in layers] if flat else None
        )

    def begin_rows(self, table: Table) -> None:
        """Begin a step of one token for each session, whose states only the table and kernels know."""
        assert self.kernels is not None
        self.spans = ()
        layers = range(len(self.layers))
        self.states = [States(i, (), _Masks(()), self.kernels, table) for i in layers]

    @property
    def num_seen(self) -> int:
        """Tokens before this step. With several sessions it is undefined, so its value makes any use fail visibly."""
        return self.spans[0].start if self.states is None else _INVALID_LENGTH

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Write keys and values, both `(1, heads, tokens, dim)`, and return what the attention reads."""
        if self.states is not None:
            states = self.states[layer_idx]
            states.write(key_states[0], value_states[0])
            return states, states
        (span,) = self.spans
        keys, values = span.kv.keys[layer_idx], span.kv.values[layer_idx]
        keys[:, span.start : span.stop] = key_states[0]
        values[:, span.start : span.stop] = value_states[0]
        return keys[None, :, : span.stop], values[None, :, : span.stop]


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's cache, as far as stock code reads it to make a mask."""

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
        return self._step.num_seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._step.num_seen + query_length, 0

    def get_max_length(self) -> int:
        return -1


class States:
    """The keys and values of one layer, of all sessions of a step; `kernels` find them by `table`."""

    def __init__(
        self,
        layer: int,
        spans: Sequence[Span],
        masks: _Masks,
        kernels: Kernels | None = None,
        table: Table | None = None,
    ) -> None:
        self._layer = layer
        self._spans = spans
        self._masks = masks
        self._kernels = kernels
        self._table = table
        self.window: int | None = None  # that the model passed

    def write(self, keys: Tensor, values: Tensor) -> None:
        """Store the new tokens' keys and values, `(heads, tokens, dim)`."""
        if self._kernels and self._table:
            self._kernels.write(keys, values, self._table, self._layer)
            return
        counts = [span.num_tokens for span in self._spans]
        targets: list[Tensor] = []
        for kv, start, count in self._spans:
            targets.append(kv.keys[self._layer].narrow(1, start, count))
            targets.append(kv.values[self._layer].narrow(1, start, count))
        new = zip(keys.split(counts, dim=1), values.split(counts, dim=1), strict=True)
        torch._foreach_copy_(targets, [part for pair in new for part in pair])

    def attend(self, query: Tensor, rule: Rule, window: int | None) -> Tensor:
        """Return the attention of the new tokens' queries `(1, heads, tokens, dim)` as `(1, tokens, heads, value_dim)`.

        A token sees its own session's tokens up to itself, only the last `window` of them if there is a window.
        """
        self.window = window
        if self._kernels and self._table:
            output = self._kernels.attend(query[0], self._table, self._layer, rule, window)
            ends = itertools.accumulate(span.num_tokens for span in self._spans)
            for index, (span, end) in enumerate(zip(self._spans, ends, strict=True)):
                if span.num_tokens > 1:
                    part = slice(end - span.num_tokens, end)
                    output[part] = self._attend(index, query[:, :, part], rule, window)[0]
            return output[None]
        queries = query.split([span.num_tokens for span in self._spans], dim=2)
        outputs = [self._attend(index, part, rule, window) for index, part in enumerate(queries)]
        return torch.cat(outputs, dim=1)

    def _attend(self, index: int, query: Tensor, rule: Rule, window: int | None) -> Tensor:
        """Compute it for span `index` alone."""
        span = self._spans[index]
        first = max(0, span.start + 1 - window) if window else 0
        keys = span.kv.keys[self._layer][None, :, first : span.stop]
        values = span.kv.values[self._layer][None, :, first : span.stop]
        mask = self._masks.of(index, first, window) if span.num_tokens > 1 else None
        return rule.attend(query, keys, values, mask)


class Rule(NamedTuple):
    """A layer's own arguments of the library's attention interface."""

    scale: float | None
    softcap: float | None = None
    sinks: Tensor | None = None

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention of one session's new tokens, causal without a mask; `(1, tokens, heads, value_dim)`."""
        if self.softcap is not None or self.sinks is not None:
            return self._attend_plainly(query, keys, values, mask).transpose(1, 2)
        _, heads, num_tokens, dim = query.shape
        if mask is None and num_tokens > 1:
            return scaled_dot_product_attention(
                query, keys, values, is_causal=True, scale=self.scale, enable_gqa=True
            ).transpose(1, 2)
        # Heads that share keys become tokens: no key is read twice. Some GPU backends take no mask together with shared keys.
        groups = query.reshape(1, keys.shape[1], -1, dim)
        mask = None if mask is None else mask.repeat(heads // keys.shape[1], 1)
        output = scaled_dot_product_attention(groups, keys, values, mask, scale=self.scale)
        return output.reshape(1, heads, num_tokens, -1).transpose(1, 2)

    def _attend_plainly(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Compute the same step by step, as the library's eager attention does."""
        _, heads, num_tokens, dim = query.shape
        scale = dim**-0.5 if self.scale is None else self.scale
        groups = query.reshape(1, keys.shape[1], -1, num_tokens, dim)
        scores = groups @ keys.unsqueeze(2).transpose(-1, -2) * scale
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if mask is None and num_tokens > 1:
            mask = scores.new_ones(num_tokens, num_tokens, dtype=torch.bool).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        if self.sinks is not None:
            sinks = self.sinks.view(1, keys.shape[1], -1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, sinks], dim=-1)
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
        output = weights[..., : keys.shape[2]] @ values.unsqueeze(2)
        return output.reshape(1, heads, num_tokens, -1)


class _Masks:
    """The keys that each token of a chunk may see, made once a step for all layers."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._made: dict[tuple[int, int | None], Tensor | None] = {}

    def of(self, index: int, first: int, window: int | None) -> Tensor | None:
        """Return `(num_tokens, stop - first)`, True where a token of span `index` sees a key; None for plain causal."""
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
    """Return a 4D mask, which stock code passes on instead of making one; `FLAT` ignores it."""
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Any,
    value: Any,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Implement the library's attention interface; ordinary tensors go to the library's own function."""
    if isinstance(key, States):
        return key.attend(query, Rule(scaling, softcap, s_aux), sliding_window), None
    output: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, softcap=softcap, **kwargs
    )
    return output


AttentionInterface.register(FLAT, _attention)
AttentionMaskInterface.register(FLAT, sdpa_mask)
