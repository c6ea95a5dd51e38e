"""Launches of the Triton kernels for the attention of many sessions.

`triton` is installed only with a GPU, so no other module may import this one at its top.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ts_stateful.language.kernels.gpu.triton_code import attend_kernel, join_kernel, write_kernel
from ts_stateful.language.kernels.rule import Rule
from ts_stateful.language.kernels.states import dense
from ts_stateful.language.kv.layout import KVLayout
from ts_stateful.language.kv.spans import Table

__all__ = ["TritonKernels"]

# A program's keys, and the same for values: two such stages fit into any GPU's shared memory.
_TILE_BYTES: Final = 16384
_LARGEST_TILE: Final = 128  # tokens
_SMALLEST_DOT: Final = 16
_MIN_SPLITS, _MAX_SPLITS = 4, 32  # 4: a long session may be one row of many
_PROGRAMS_PER_PROCESSOR: Final = 4


class TritonKernels:
    """Implements `attention.Kernels` for one model.

    `num_processors` and `shared_bytes`, those of a program's shared memory, are the device's. With `early` a kernel may be
    launched while the one before it runs, and waits for it itself: the device must have that. `state` and `product` are the
    types of states and of what is multiplied, `launch` options of every launch.
    """

    def __init__(
        self,
        layout: KVLayout,
        num_processors: int,
        shared_bytes: int = 2**16,
        *,
        early: bool = False,
    ) -> None:
        self.shared_bytes = shared_bytes
        self._layers = layout.layers
        self._itemsize = layout.dtype.itemsize
        self.state: Any = getattr(tl, str(layout.dtype).removeprefix("torch."))
        # Triton's interpreter would multiply the bits of bfloat16 as integers.
        emulated = triton.knobs.runtime.interpret and layout.dtype is torch.bfloat16
        self.product: Any = tl.float32 if emulated else self.state
        self._num_programs = num_processors * _PROGRAMS_PER_PROCESSOR
        self.launch: dict[str, Any] = {"EARLY": early, **({"launch_pdl": True} if early else {})}

    def write(self, keys: Tensor, values: Tensor, table: Table, layer: int) -> None:
        """Store the new tokens' keys and values, `(heads, tokens, dim)`, in their sessions' states."""
        keys, values = dense(keys), dense(values)
        shape = self._layers[layer]
        write_kernel[(table.num_tokens, shape.heads)](
            *(keys, values, table.buffer, table.num_tokens, table.num_rows, table.num_spans, layer),
            *keys.stride()[:2],
            *values.stride()[:2],
            STATE=self.state,
            KEY_DIM=shape.key_dim,
            VALUE_DIM=shape.value_dim,
            KEY_BLOCK=triton.next_power_of_2(shape.key_dim),
            VALUE_BLOCK=triton.next_power_of_2(shape.value_dim),
            num_warps=1,
            **self.launch,
        )

    def attend(
        self,
        query: Tensor,
        table: Table,
        layer: int,
        rule: Rule,
        window: int | None,
        num_splits: int | None = None,
    ) -> Tensor:
        """Return the attention of the rows among the queries `(heads, tokens, dim)`.

        The result is `(tokens, heads, value_dim)`; the other tokens' rows are not set.
        """
        heads, num_tokens, _ = query.shape
        shape = self._layers[layer]
        output = query.new_empty(num_tokens, heads, shape.value_dim)
        if not table.num_rows:
            return output
        splits = num_splits or self._num_splits(table.num_rows * shape.heads)
        slots = (table.num_rows, heads, splits)
        weight = query.new_empty(slots, dtype=torch.float32)
        partial = query.new_empty((*slots, shape.value_dim), dtype=torch.float32)
        self._attend_splits(dense(query), partial, weight, table, layer, rule, window)
        join_kernel[(table.num_rows, heads)](
            *(partial, weight, output, weight if rule.sinks is None else rule.sinks),
            *(table.buffer, table.num_tokens, window or 0, splits),
            VALUE_DIM=shape.value_dim,
            VALUE_BLOCK=_block(shape.value_dim),
            TILE=self._tile(layer),
            SINKS=rule.sinks is not None,
            num_warps=1,
            **self.launch,
        )
        return output

    def _attend_splits(
        self,
        query: Tensor,
        partial: Tensor,
        weight: Tensor,
        table: Table,
        layer: int,
        rule: Rule,
        window: int | None,
    ) -> None:
        """Compute partial results of every row's splits."""
        shape = self._layers[layer]
        group = query.shape[0] // shape.heads
        attend_kernel[(table.num_rows, shape.heads, weight.shape[2])](
            *(query, partial, weight),
            *(table.buffer, table.num_tokens, table.num_rows, table.num_spans, layer, window or 0),
            *query.stride()[:2],
            shape.key_dim**-0.5 if rule.scale is None else rule.scale,
            rule.softcap or 0.0,
            STATE=self.state,
            PRODUCT=self.product,
            GROUP=group,
            KEY_DIM=shape.key_dim,
            VALUE_DIM=shape.value_dim,
            GROUP_BLOCK=_block(group),
            KEY_BLOCK=_block(shape.key_dim),
            VALUE_BLOCK=_block(shape.value_dim),
            TILE=self._tile(layer),
            SOFTCAP=rule.softcap is not None,
            num_warps=4,
            num_stages=2,
            **self.launch,
        )

    def _tile(self, layer: int) -> int:
        """Return the tokens that a program reads at once."""
        shape = self._layers[layer]
        width = _block(max(shape.key_dim, shape.value_dim))
        return min(max(_TILE_BYTES // (width * self._itemsize), _SMALLEST_DOT), _LARGEST_TILE)

    def _num_splits(self, num_programs: int) -> int:
        """Return the programs for a row's key head: enough to fill the device at any length, without reading lengths."""
        return min(max(self._num_programs // num_programs, _MIN_SPLITS), _MAX_SPLITS)


def _block(size: int) -> int:
    """Return the block size of a dimension: a power of two, and at least the smallest that products support."""
    return max(int(triton.next_power_of_2(size)), _SMALLEST_DOT)
