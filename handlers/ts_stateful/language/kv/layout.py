"""The states that a model keeps for a token: keys and values of every layer, and keys of indexes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ts_stateful.language.kv.recurrent import KEPT

__all__ = ["KVLayout", "LayerShape"]


class LayerShape(NamedTuple):
    """The states of one token in one layer: keys `(heads, key_dim)`, values `(heads, value_dim)`."""

    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class KVLayout:
    """The states that a model keeps for a token.

    `recurrent` counts the recurrent states of every layer, which together take `recurrent_bytes`. `indexes` has the width of a
    token's further key in every layer, by which an index chooses tokens; 0 in a layer without an index. Both are empty if there
    are none. A layer without keys and values has the shape `(0, 0, 0)`. With `per_prompt` all tokens of a prompt see
    one another, with those of earlier turns, so the states are of use for that prompt and its reply alone.
    """

    layers: tuple[LayerShape, ...]
    dtype: torch.dtype
    recurrent: tuple[int, ...] = ()
    recurrent_bytes: int = 0
    indexes: tuple[int, ...] = ()
    per_prompt: bool = False

    @cached_property
    def token_elements(self) -> int:
        """Numbers that one token takes in all layers."""
        pairs = sum(shape.heads * (shape.key_dim + shape.value_dim) for shape in self.layers)
        return pairs + sum(self.indexes)

    @cached_property
    def shapes(self) -> list[tuple[int, int]]:
        """The heads and numbers of a token's keys in every layer, then its values, then the keys of indexes."""
        keys = [(shape.heads, shape.key_dim) for shape in self.layers]
        values = [(shape.heads, shape.value_dim) for shape in self.layers]
        return [*keys, *values, *((1, dim) for dim in self.indexes)]

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """The block of each of the `shapes` and its number there: neighbors of one shape are in one block."""
        groups = (list(group) for _, group in itertools.groupby(self.shapes))
        return [(block, part) for block, group in enumerate(groups) for part in range(len(group))]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The bytes of a token before each layer's keys, and before its values, `(2 * layers,)`: those of a layer together."""
        sizes = [0, *(heads * dim for heads, dim in self.shapes)]
        starts = np.cumsum(sizes, dtype=np.int64)[: 2 * len(self.layers)]
        return (starts * self.dtype.itemsize).reshape(2, -1).T.ravel()

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in all layers."""
        return self.token_elements * self.dtype.itemsize

    def num_bytes(self, num_tokens: int) -> int:
        """Return the most bytes that a session of so many tokens takes."""
        return num_tokens * self.token_bytes + (2 + KEPT) * self.recurrent_bytes
