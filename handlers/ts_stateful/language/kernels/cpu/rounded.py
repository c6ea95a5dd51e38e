"""Weights in 8 bits, beside the real ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import torch
from torch import Tensor

from ts_stateful.language.kernels.cpu.weight_memory import empty_copies

__all__ = ["Rounded", "row_blocks"]

_AT_ONCE: Final = 1 << 18  # weights that are rounded at a time, so that they stay in a cache
_LARGEST: Final = 127


class Rounded(NamedTuple):
    """Weights `(out, in)` as int8 numbers, and what a unit of each row is, `(out,)` float32."""

    numbers: Tensor
    units: Tensor

    @classmethod
    def of(cls, weights: Tensor) -> Rounded:
        """Round weights to the nearest numbers; the largest one of a row is 127 units."""
        (numbers,) = empty_copies([weights], torch.int8)
        units = torch.empty(len(weights))
        for some in row_blocks(weights):
            rows = weights.detach()[some].float()
            largest = rows.abs().amax(-1)
            units[some] = (largest / _LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
            numbers[some] = (rows / units[some, None]).round().clamp(-_LARGEST, _LARGEST)
        return cls(numbers, units)


def row_blocks(weights: Tensor) -> Iterator[slice]:
    """Yield so many rows of weights at a time that copies of them stay in a cache."""
    size = max(1, _AT_ONCE // weights.shape[1])
    for begin in range(0, len(weights), size):
        yield slice(begin, begin + size)
