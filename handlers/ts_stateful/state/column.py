"""One output of all rows of a pass.

Owns how a row is cut out of it, as a tensor or as its elements. Knows nothing of sequences or of formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

__all__ = ["Column"]


class Column:
    """A tensor `(rows, ...)` on the host, each row of which ends in dimension `dim` (of a row) where `lengths` say so."""

    def __init__(self, tensor: Tensor, dim: int | None, lengths: Sequence[int] | None) -> None:
        self._tensor = tensor
        self._dim = dim
        self._lengths = lengths
        self._shape = tuple(tensor.shape[1:])

    def tensor(self, row: int) -> Tensor:
        """A row, cut to its length."""
        tensor = self._tensor[row]
        if self._dim is None or self._lengths is None:
            return tensor
        return tensor.narrow(self._dim, 0, self._lengths[row])

    def elements(self, row: int) -> tuple[tuple[int, ...], list[Any]]:
        """The shape of a row, cut to its length, and its elements in the order of C."""
        if self._dim is None or self._lengths is None:
            return self._shape, self._rows[row]
        tensor = self.tensor(row)
        return tuple(tensor.shape), tensor.reshape(-1).tolist()

    @cached_property
    def _rows(self) -> list[list[Any]]:
        # All at once: a call of torch's takes longer than the few elements of a row.
        flat = self._tensor.flatten(1) if self._shape else self._tensor.unsqueeze(1)
        rows: list[list[Any]] = flat.tolist()
        return rows
