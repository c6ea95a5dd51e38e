"""Experts of a stock network whose weights are held in 16 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as multiply

from ts_stateful.language.kernels.cpu.replace_linears import child_modules

__all__ = ["CompactExperts", "make_compact"]


class CompactExperts(nn.Module):
    """The experts of Mixtral and Qwen3-MoE in float32, on weights `(experts, outputs, inputs)` that it widens."""

    def __init__(self, experts: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.act_fn = experts.act_fn
        self.gate_up_proj = nn.Parameter(experts.gate_up_proj.to(dtype), requires_grad=False)
        self.down_proj = nn.Parameter(experts.down_proj.to(dtype), requires_grad=False)
        self.train(experts.training)

    def forward(self, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Return each token's sum of the outputs of its `chosen` experts `(tokens, count)`, times their `shares`."""
        output = torch.zeros_like(hidden)
        for expert in chosen.unique().tolist():
            tokens, places = torch.where(chosen == expert)
            both = multiply(hidden[tokens], self.gate_up_proj[expert].to(hidden.dtype))
            gate, up = both.chunk(2, -1)
            made = multiply(self.act_fn(gate) * up, self.down_proj[expert].to(hidden.dtype))
            output.index_add_(0, tokens, made * shares[tokens, places, None])
        return output


@torch.no_grad()
def make_compact(network: nn.Module, dtypes: Mapping[nn.Module, torch.dtype]) -> None:
    """Replace the experts in `dtypes`, in place."""
    for parent, name, child in child_modules(network):
        if child in dtypes and not isinstance(child, nn.Linear):
            setattr(parent, name, CompactExperts(child, dtypes[child]))
