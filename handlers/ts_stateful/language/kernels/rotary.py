"""Cosines and sines by which a network turns queries and keys, as its own module computes them."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["Rotary"]

# Kinds of frequencies that are the same in every step. Those of others depend on a step's last position.
_CONSTANT: Final = frozenset({"default", "linear", "llama3", "yarn"})
# Modules of networks that rotate neighbors together; these repeat the first half of what their module returns.
_HALVES: Final = frozenset({"Ernie4_5RotaryEmbedding", "Glm4RotaryEmbedding", "GlmRotaryEmbedding"})
_ONCE: Final = frozenset({"GptOssRotaryEmbedding"})  # modules that return only the first half
_NEIGHBORS: Final = _HALVES | {"Glm4vTextRotaryEmbedding"}
_GRAIN: Final = 1024  # positions


class Rotary:
    """The turns of a network's positions. A position's are computed once, and looked up from then on, where that is exact.

    `kinds` are the kinds of layers that differ in their positions, and `[None]` where all have the same. `neighbors` is True if
    a number is rotated with the next one, and False if with the one half of the rotated dimensions away.
    """

    def __init__(self, module: Any) -> None:
        self.kinds: list[str | None] = list(getattr(module, "layer_types", [None]))
        self.neighbors = type(module).__name__ in _NEIGHBORS
        self._module = module
        types: Any = getattr(module, "rope_type", "")
        self._is_constant = _CONSTANT.issuperset(types.values() if self.kinds[0] else [types])
        self._known = torch.empty(1, 0), torch.empty(1, 0)  # (kinds, positions, rotated dimensions)

    def __call__(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of each kind of layer, `(kinds, tokens, rotated dimensions)` each."""
        if not self._is_constant or len(positions) > 1:  # M-RoPE has positions of three axes
            return self.compute(hidden, positions)
        last = int(positions.max())
        if last >= self._known[0].shape[1]:
            self._known = self.compute(hidden, torch.arange(last + last // 8 + _GRAIN)[None])
        cos, sin = self._known
        return cos.index_select(1, positions[0]), sin.index_select(1, positions[0])

    def kind_of(self, attention: Any) -> int:
        """Return the index of the kind of a layer's positions."""
        if self.kinds[0] is None:
            return 0
        kind = getattr(attention, "layer_type", None) or getattr(attention, "attention_type", None)
        return self.kinds.index(kind)

    def compute(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Do so without looking at the positions, for which a GPU would be waited for."""
        found = [self._module(hidden, positions, *filter(None, (kind,))) for kind in self.kinds]
        cos, sin = (torch.cat(tables) for tables in zip(*found, strict=True))
        return self._whole(cos), self._whole(sin)

    def _whole(self, table: Tensor) -> Tensor:
        """Return a table with a number for each rotated dimension."""
        name = type(self._module).__name__
        if name in _HALVES:
            return table.chunk(2, -1)[0].repeat_interleave(2, -1)
        return torch.cat([table, table], -1) if name in _ONCE else table
