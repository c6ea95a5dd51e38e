"""Attention over the new tokens of many sessions, in one forward pass of a stock `transformers` model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ts_stateful.language.kernels.cache_layers import AttentionLayer, RecurrentLayer
from ts_stateful.language.kernels.indexes import PerSession, narrow, update_index
from ts_stateful.language.kernels.rule import Masks, Reach, Rule
from ts_stateful.language.kv.spans import Span, Table
from ts_stateful.language.kv.to_device import to_device

__all__ = ["FLAT", "Kernels", "States", "StepCache", "unused_mask"]

FLAT = "ts_stateful"  # the name of the attention function


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


class AttentionRule(Protocol):
    """A way of computing one session's attention from its states."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention of queries `(1, heads, tokens, dim)` as `(1, tokens, heads, value_dim)`.

        `mask` is True where a token sees a key, `(tokens, keys)`; None is causal attention from the first key.
        """
        ...


class StepCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """The KV states of a step's sessions, as a model sees them; reused for every step.

    With `flat` the model's attention is `FLAT`, the library's own extension point (`AttentionInterface`). The new tokens of all
    sessions follow one another in one row `(1, tokens)`. Only attention treats sessions apart: it receives their states instead
    of tensors. So no session is padded, copied or moved, and a decode token and a chunk of a prompt take the same path.
    `kernels`, if set, compute it. Without `flat`, one span goes in, and the model gets tensors as from any cache of the
    library. `chunks` are the tokens of the chunks in which layers attend; stock code passes them in masks alone. `recurrent`
    counts the recurrent states of each layer; a session with such states goes in alone.
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
            (span,) = spans
            assert span.kv.recurrent is not None
            before = span.kv.recurrent.after(span.start)
            states = iter(before or ())
            for layer in self._recurrent:
                layer.load(list(itertools.islice(states, 2 * layer.number_of_states)))

    def end(self, spans: Sequence[Span]) -> None:
        """Set the lengths of a step's sessions, and their new recurrent states: the step succeeded."""
        for span in spans:
            span.kv.length = span.stop
            if span.kv.recurrent is not None:
                states = [state for layer in self._recurrent for state in layer.take()]
                span.kv.recurrent.put(span.stop, states)

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
            if flat
            else None
        )

    @property
    def num_seen(self) -> int | Tensor:
        """Tokens before this step; with `flat`, for each token its position less its index in the row."""
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

    def update_indexer(self, indexer_key_states: Tensor, layer_idx: int) -> Any:
        """Write keys of a layer's index, `(1, tokens, dim)`, and return those of all tokens."""
        seen = update_index(indexer_key_states, self.spans, self._masks, layer_idx)
        return seen.parts[0] if self.states is None else seen


class States:
    """The keys and values of one layer, of all sessions of a step; `kernels` find them by `table`.

    A model passes the layer's window with every query, so `window` is None before the first. `for_kernels` is False if this
    attention follows rules that no kernel implements.
    """

    def __init__(
        self,
        layer: int,
        spans: Sequence[Span],
        masks: Masks,
        chunk: int | None,
        kernels: Kernels | None = None,
        table: Table | None = None,
    ) -> None:
        self._layer = layer
        self._spans = spans
        self._masks = masks
        self._chunk = chunk
        self._kernels = kernels
        self._table = table
        self.window: int | None = None
        self.for_kernels = chunk is None

    def write(self, keys: Tensor, values: Tensor) -> None:
        """Store the new tokens' keys and values, `(heads, tokens, dim)`."""
        if self._kernels and self._table:
            self._kernels.write(keys, values, self._table, self._layer)
            return
        targets: list[Tensor] = []
        for kv, start, count, _ in self._spans:
            targets.append(kv.keys[self._layer].narrow(1, start, count))
            targets.append(kv.values[self._layer].narrow(1, start, count))
        new = zip(keys.split(self.counts, dim=1), values.split(self.counts, dim=1), strict=True)
        torch._foreach_copy_(targets, [part for pair in new for part in pair])

    def attend(
        self, query: Tensor, rule: Rule, window: int | None, chosen: PerSession | None = None
    ) -> Tensor:
        """Return the attention of the new tokens' queries `(1, heads, tokens, dim)` as `(1, tokens, heads, value_dim)`.

        A token sees its own session's tokens up to itself, only the last `window` of them if there is a window, those of its
        block, and only those that were chosen if an index chooses.
        """
        self.window = window
        self.for_kernels &= chosen is None
        if self._kernels and self._table:
            assert self.for_kernels
            output = self._kernels.attend(query[0], self._table, self._layer, rule, window)
            ends = itertools.accumulate(self.counts)
            for index, (count, end) in enumerate(zip(self.counts, ends, strict=True)):
                if count > 1:
                    part = slice(end - count, end)
                    output[part] = self.attend_span(index, query[:, :, part], rule, window)[0]
            return output[None]
        queries = query.split(self.counts, dim=2)
        outputs = [
            self.attend_span(i, part, rule, window, chosen) for i, part in enumerate(queries)
        ]
        return torch.cat(outputs, dim=1)

    @classmethod
    def __torch_function__(
        cls,
        function: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Tensor:
        """Attend where stock code calls torch's function itself, as Falcon does; a step of many sessions has no mask."""
        if function is not scaled_dot_product_attention:
            raise NotImplementedError(f"{function.__name__} of the states of many sessions")
        query, key, _ = args
        output: Tensor = key.attend(query, Rule((kwargs or {}).get("scale")), None)
        return output.transpose(1, 2).contiguous()

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of keys as far as sessions agree: one row."""
        return 1, -1, -1, -1

    @property
    def counts(self) -> list[int]:
        """The numbers of new tokens of the sessions."""
        return [span.num_tokens for span in self._spans]

    @property
    def lengths(self) -> list[int]:
        """The numbers of all tokens of the sessions, after the step."""
        return [span.stop for span in self._spans]

    def attend_span(
        self,
        index: int,
        query: Tensor,
        rule: AttentionRule,
        window: int | None,
        chosen: PerSession | None = None,
    ) -> Tensor:
        """Return the same for session `index` alone."""
        span, reach = self._spans[index], Reach(window, self._chunk)
        seen = slice(reach.first(span.start), span.stop)
        keys = span.kv.keys[self._layer][None, :, seen]
        values = span.kv.values[self._layer][None, :, seen]
        mask = self._masks.of(index, reach) if span.num_tokens > 1 else None
        if chosen is not None:
            keys, values, mask = narrow(chosen.parts[index], keys, values, mask)
        return rule.attend(query, keys, values, mask)


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
        return key.attend(query, Rule(scaling, softcap, s_aux), sliding_window, indices), None
    output: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, softcap=softcap, **kwargs
    )
    return output


AttentionInterface.register(FLAT, _attention)
AttentionMaskInterface.register(FLAT, sdpa_mask)
