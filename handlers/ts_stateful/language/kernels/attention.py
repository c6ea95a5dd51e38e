"""Attention over the new tokens of many sessions, in one forward pass of a stock `transformers` model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ts_stateful.language.kernels.cache_layers import (
    AttentionLayer,
    RecurrentLayer,
    load_states,
    take_states,
)
from ts_stateful.language.kernels.indexes import update_index
from ts_stateful.language.kernels.rule import Masks, Rule
from ts_stateful.language.kernels.states import Kernels, States
from ts_stateful.language.kv.host_copies import to_device
from ts_stateful.language.kv.recurrent import Recurrent
from ts_stateful.language.kv.spans import Span, Table

__all__ = ["FLAT", "StepCache", "unused_mask"]

FLAT = "ts_stateful"  # the name of the attention function


class StepCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """The KV states of a step's sessions, as a model sees them; reused for every step.

    With `flat` the model's attention is `FLAT`, the library's own extension point (`AttentionInterface`). The new tokens of all
    sessions follow one another in one row `(1, tokens)`. Only attention treats sessions apart: it receives their states instead
    of tensors. So no session is padded, copied or moved, and a decode token and a chunk of a prompt take the same path.
    `kernels`, if set, compute it. Without `flat`, one span goes in, and the model gets tensors as from any cache of the
    library, or several spans of one token as a batch. `chunks` are the tokens of the chunks in which layers attend; stock code
    passes them in masks alone. `recurrent` counts the recurrent states of each layer; sessions with such states go in alone, or
    as a batch, which then has the states of all of them.
    """

    def __init__(
        self,
        num_layers: int,
        chunks: Sequence[int | None] = (),
        recurrent: Sequence[int] = (),
    ) -> None:
        counts = recurrent or [0] * num_layers
        layers = [
            RecurrentLayer(self, index, count) if count else AttentionLayer(self, index)
            for index, count in enumerate(counts)
        ]
        super().__init__(layers=layers)
        self._recurrent = [layer for layer in layers if isinstance(layer, RecurrentLayer)]
        self.chunks = list(chunks) or [None] * num_layers
        self.kernels: Kernels | None = None
        self._num_seen: int | Tensor | None = None
        self.spans: Sequence[Span] = ()
        self.states: list[States] | None = None

    def begin(self, spans: Sequence[Span], *, flat: bool) -> None:
        """Make room for the tokens of a step."""
        for span in spans:
            span.kv.reserve(span.stop)
        table = Table.of(spans).on(spans[0].kv.device) if flat and self.kernels else None
        self._begin(spans, table, flat)
        if self._recurrent:
            load_states(self._recurrent, [_recurrent(span).after(span.start) for span in spans])

    def end(self, spans: Sequence[Span]) -> None:
        """Set the lengths of a step's sessions, and their new recurrent states: the step succeeded."""
        for span in spans:
            span.kv.length = span.stop
        if self._recurrent:
            for span, states in zip(spans, take_states(self._recurrent, len(spans)), strict=True):
                _recurrent(span).put(span.stop, states)

    def begin_rows(self, table: Table) -> None:
        """Begin a step of one token for each session, whose states only the table and kernels know."""
        assert self.kernels is not None
        self._begin((), table, True)

    def _begin(self, spans: Sequence[Span], table: Table | None, flat: bool) -> None:
        self.spans, self._table, self._num_seen = spans, table, None
        self._masks = Masks(spans)
        self.states = (
            [
                States(layer, spans, self._masks, chunk, self.kernels, table)
                for layer, chunk in enumerate(self.chunks)
            ]
            if flat or len(spans) > 1
            else None
        )

    @property
    def num_seen(self) -> int | Tensor:
        """Tokens before this step; of many sessions, for each token its position less its index among them."""
        if self.states is None:
            return self.spans[0].start
        if self._num_seen is None:
            self._num_seen = self._count_seen()
        return self._num_seen

    def _count_seen(self) -> Tensor:
        if self._table is not None:
            positions = self._table.positions
        else:
            places = [place for span in self.spans for place in range(span.start, span.stop)]
            positions = to_device(places, self.spans[0].kv.device)
        return positions - torch.arange(len(positions), device=positions.device)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Write keys and values, `(1, heads, tokens, dim)` or `(spans, heads, 1, dim)`; return what the attention reads."""
        if self.states is not None:
            states = self.states[layer_idx]
            if len(key_states) > 1:  # a batch of one token each
                key_states, value_states = key_states.transpose(0, 2), value_states.transpose(0, 2)
            states.write(key_states[0], value_states[0])
            return states, states
        (span,) = self.spans
        keys, values = span.kv.keys(layer_idx), span.kv.values(layer_idx)
        keys[:, span.start : span.stop] = key_states[0]
        values[:, span.start : span.stop] = value_states[0]
        return keys[None, :, : span.stop], values[None, :, : span.stop]

    def token_types(self) -> Tensor:
        """Return 0 for tokens of a prompt that see one another and 1 for others, `(1, tokens)`, of one span."""
        (span,) = self.spans
        types = torch.ones(1, span.num_tokens, dtype=torch.long, device=span.kv.device)
        for start, stop, _ in span.blocks:
            types[:, start - span.start : stop - span.start] = 0
        for layer in self.layers:
            layer.is_initialized = span.start > 0  # else stock code does not read them
        return types

    def update_indexer(self, indexer_key_states: Tensor, layer_idx: int) -> Any:
        """Write keys of a layer's index, `(1, tokens, dim)`, and return those of all tokens."""
        seen = update_index(indexer_key_states, self.spans, self._masks, layer_idx)
        return seen.parts[0] if self.states is None else seen


def _recurrent(span: Span) -> Recurrent:
    assert span.kv.recurrent is not None
    return span.kv.recurrent


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
    indices: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Implement the library's attention interface; ordinary tensors go to the library's own function."""
    if not isinstance(key, Tensor):  # the states of many sessions
        is_batch = len(query) > 1  # of one token each
        row = query.transpose(0, 2) if is_batch else query
        window = sliding_window
        # Qwen2-MoE leaves the window to its mask. All layers of EXAONE 4 name it, also those that do not have it.
        if window is None and getattr(module, "is_sliding", True):
            window = getattr(module, "sliding_window", None)
        attended = key.attend(row, Rule(scaling, softcap, s_aux), window, indices)
        return attended.transpose(0, 1) if is_batch else attended, None
    output: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, softcap=softcap, **kwargs
    )
    return output


AttentionInterface.register(FLAT, _attention)
AttentionMaskInterface.register(FLAT, sdpa_mask)
