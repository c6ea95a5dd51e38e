"""Attention of single tokens of many sessions, and the writing of their states, by compiled CPU kernels."""

from __future__ import annotations

import ctypes
from typing import Final

import torch
from torch import Tensor

from ts_stateful.language.kernels.cpu.library import (
    LANES,
    AttentionFacts,
    StepFacts,
    functions_for,
    num_splits,
)
from ts_stateful.language.kernels.rule import Rule
from ts_stateful.language.kernels.states import dense
from ts_stateful.language.kv.layout import KVLayout
from ts_stateful.language.kv.spans import Table

__all__ = ["CpuKernels"]

_WIDEST: Final = 1024  # dimensions at most, as WIDEST in `src/attention_block.h`
_DTYPES: Final = (torch.float32, torch.bfloat16)


class CpuKernels:
    """Implements `attention.Kernels` for one model.

    torch computes one session's token at a time, at a third of the memory's speed. `src/attention.h` computes those of all
    sessions in one call, as fast as memory delivers their states.
    """

    def __init__(self, layout: KVLayout, library: ctypes.CDLL) -> None:
        self._layers = layout.layers
        functions = functions_for(library, layout.dtype)
        self._write, self._attend = functions.write, functions.attend
        self._step = StepFacts()
        self._layer = AttentionFacts()

    @staticmethod
    def serves(layout: KVLayout) -> bool:
        """Return True if the kernels support the dtype and dimensions of these states."""
        dims = [dim for shape in layout.layers for dim in (shape.key_dim, shape.value_dim)]
        return layout.dtype in _DTYPES and all(d % LANES == 0 and d <= _WIDEST for d in dims)

    def write(self, keys: Tensor, values: Tensor, table: Table, layer: int) -> None:
        """Store the new tokens' keys and values, `(heads, tokens, dim)`, in their sessions' states."""
        step = self._at(table, layer, None)
        for which, states in enumerate((dense(keys), dense(values))):
            heads, _, dim = states.shape
            self._write(step, states.data_ptr(), *states.stride()[:2], heads, dim, which)

    def attend(
        self, query: Tensor, table: Table, layer: int, rule: Rule, window: int | None
    ) -> Tensor:
        """Return the attention of the rows among the queries `(heads, tokens, dim)`.

        The result is `(tokens, heads, value_dim)`; the other tokens' rows are not set.
        """
        query = dense(query)
        num_heads, num_tokens, _ = query.shape
        shape = self._layers[layer]
        output = query.new_empty(num_tokens, num_heads, shape.value_dim)
        if not table.num_rows:
            return output
        group = num_heads // shape.heads
        splits = num_splits(table, shape.heads, group)
        partial = torch.empty(table.num_rows * num_heads * splits * (shape.value_dim + 2))
        facts = self._layer
        facts.heads, facts.group = shape.heads, group
        facts.key_dim, facts.value_dim = shape.key_dim, shape.value_dim
        facts.scale = shape.key_dim**-0.5 if rule.scale is None else rule.scale
        facts.softcap = rule.softcap or 0.0
        sinks = None if rule.sinks is None else rule.sinks.float()
        self._attend(
            self._at(table, layer, window),
            ctypes.byref(facts),
            query.data_ptr(),
            *query.stride()[:2],
            None if sinks is None else sinks.data_ptr(),
            splits,
            partial.data_ptr(),
            output.data_ptr(),
        )
        return output

    def _at(self, table: Table, layer: int, window: int | None) -> object:
        step = self._step
        step.table, step.num_tokens = table.buffer.data_ptr(), table.num_tokens
        step.num_rows, step.num_spans = table.num_rows, table.num_spans
        step.layer, step.window = layer, window or 0
        return ctypes.byref(step)
