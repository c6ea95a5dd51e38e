"""Kernels in plain Python that read only the table, as Triton's do, for tests without Triton."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from ts_stateful.language.kernels.rule import Rule
from ts_stateful.language.kv.layout import KVLayout
from ts_stateful.language.kv.spans import Table


class TableKernels:
    """Implements `attention.Kernels` on a CPU, in float32 and for any layout."""

    def __init__(self, layout: KVLayout) -> None:
        assert layout.dtype is torch.float32
        self._layers = layout.layers
        self.num_calls = 0

    def write(self, keys: Tensor, values: Tensor, table: Table, layer: int) -> None:
        """Store the new tokens' keys and values, `(heads, tokens, dim)`."""
        for token in range(table.num_tokens):
            position, targets = self._states(table, layer, token)
            for target, new in zip(targets, (keys, values), strict=True):
                target[:, position] = new[:, token]

    def attend(
        self, query: Tensor, table: Table, layer: int, rule: Rule, window: int | None
    ) -> Tensor:
        """Return the attention of the rows, by the definition."""
        self.num_calls += 1
        heads, num_tokens, dim = query.shape
        output = query.new_full((num_tokens, heads, self._layers[layer].value_dim), math.nan)
        rows = table.buffer[2 * num_tokens :][: table.num_rows].tolist()
        scale = dim**-0.5 if rule.scale is None else rule.scale
        for token in rows:
            position, (keys, values) = self._states(table, layer, token)
            first = max(0, position + 1 - window) if window else 0
            group = heads // keys.shape[0]
            for head in range(heads):
                seen = keys[head // group, first : position + 1]
                scores = seen @ query[head, token] * scale
                if rule.softcap is not None:
                    scores = torch.tanh(scores / rule.softcap) * rule.softcap
                if rule.sinks is not None:
                    scores = torch.cat([scores, rule.sinks[head : head + 1]])
                weights = scores.softmax(0)[: len(seen)]
                output[token, head] = weights @ values[head // group, first : position + 1]
        return output

    def _states(self, table: Table, layer: int, token: int) -> tuple[int, list[Tensor]]:
        """Return a token's position, and the keys and values of its session."""
        buffer = table.buffer
        span, position = int(buffer[token]), int(buffer[table.num_tokens + token])
        capacities = buffer[2 * table.num_tokens + table.num_rows :]
        addresses = capacities[table.num_spans :].view(-1, 2, table.num_spans)[layer, :, span]
        shape, capacity = self._layers[layer], int(capacities[span])
        states = []
        for address, dim in zip(addresses.tolist(), (shape.key_dim, shape.value_dim), strict=True):
            size = shape.heads * capacity * dim
            memory = (ctypes.c_float * size).from_address(address)
            states.append(torch.frombuffer(memory, dtype=torch.float32).view(-1, capacity, dim))
        return position, states
