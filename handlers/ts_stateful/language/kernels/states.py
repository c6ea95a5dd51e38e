"""The keys and values of a step's sessions in one layer, and attention over them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ts_stateful.language.kernels.indexes import PerSession, narrow
from ts_stateful.language.kernels.rule import Masks, Reach, Rule
from ts_stateful.language.kv.spans import Span, Table

__all__ = ["AttentionRule", "Kernels", "States", "dense"]


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


def dense(states: Tensor) -> Tensor:
    """Return the states with a contiguous last dimension, which kernels require."""
    return states if states.stride(-1) == 1 else states.contiguous()


class AttentionRule(Protocol):
    """A way of computing one session's attention from its states."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention of queries `(1, heads, tokens, dim)` as `(1, tokens, heads, value_dim)`.

        `mask` is True where a token sees a key, `(tokens, keys)`; None is causal attention from the first key.
        """
        ...


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
            targets.append(kv.keys(self._layer).narrow(1, start, count))
            targets.append(kv.values(self._layer).narrow(1, start, count))
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
        self.for_kernels &= chosen is None and rule.bias is None
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
        keys = span.kv.keys(self._layer)[None, :, seen]
        values = span.kv.values(self._layer)[None, :, seen]
        mask = self._masks.of(index, reach) if span.num_tokens > 1 else None
        if chosen is not None:
            keys, values, mask = narrow(chosen.parts[index], keys, values, mask)
        return rule.attend(query, keys, values, mask)
