"""Products of inputs in float32 by weights of 16 bits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Multiply", "in_float32"]

_BLOCK = 1 << 20  # weights that are converted at a time, so that they stay in a cache

Multiply = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]  # of inputs, weights and biases


def in_float32(many: Multiply) -> Multiply:
    """Return the way of multiplying by weights of 16 bits that widens them, some at a time, and then uses `many`."""

    def multiply_widened(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        wide, outputs = input.float(), max(1, _BLOCK // weight.shape[1])
        parts = [many(wide, some.float(), None) for some in weight.split(outputs)]
        output = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        if bias is not None:
            output += bias
        return output.to(input.dtype)

    return multiply_widened
