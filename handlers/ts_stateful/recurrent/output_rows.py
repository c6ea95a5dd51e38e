"""One output of all rows of a pass, and its rows as tensors and as answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ts_stateful.protocol.answers import PackedTensor, TensorAnswer
from ts_stateful.protocol.declarations import Output

__all__ = ["OutputRows", "elements_of"]


class OutputRows:
    """A tensor `(rows, ...)` on the host, each row of which ends in its free dimension where `lengths` say so."""

    def __init__(self, declared: Output, tensor: Tensor, lengths: Sequence[int] | None) -> None:
        self._declared = declared
        self._tensor = tensor
        self._lengths = None if declared.free_dim is None else lengths

    def tensor(self, row: int) -> Tensor:
        """Return a row, cut to its length."""
        tensor, dim = self._tensor[row], self._declared.free_dim
        if dim is None or self._lengths is None:
            return tensor
        return tensor.narrow(dim, 0, self._lengths[row])

    @cached_property
    def answers(self) -> list[TensorAnswer]:
        """All rows, each cut to its length."""
        name, datatype = self._declared.name, self._declared.sent_datatype
        if self._lengths is None:
            # All at once: a call of torch's takes longer than the few elements of a row.
            shape = tuple(self._tensor.shape[1:])
            flat = self._tensor.flatten(1) if shape else self._tensor.unsqueeze(1)
            return [TensorAnswer(name, datatype, shape, row) for row in flat.tolist()]
        return [
            TensorAnswer(name, datatype, tuple(row.shape), row.reshape(-1).tolist())
            for row in map(self.tensor, range(len(self._lengths)))
        ]

    def packed(self, row: int) -> PackedTensor:
        """Return a row with its elements as bytes."""
        tensor, shown = self.tensor(row), self._declared
        shape = tuple(tensor.shape)
        return PackedTensor(shown.name, shown.sent_datatype, shape, elements_of(tensor))


def elements_of(tensor: Tensor) -> bytes:
    """Return the elements in C order; those of BF16 become FP32."""
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    return tensor.contiguous().numpy().tobytes()
