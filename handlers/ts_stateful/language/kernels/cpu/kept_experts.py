"""Experts of a stock network whose weights are held in another form: in 16 bits, or in the kernels' order."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as multiply

from ts_stateful.language.kernels.cpu.library import LinearFacts, functions_for, vector_width
from ts_stateful.language.kernels.cpu.replace_linears import child_modules
from ts_stateful.language.kernels.cpu.weight_memory import empty_copies
from ts_stateful.language.kernels.cpu.widening import in_float32

__all__ = ["CompactExperts", "TurnedExperts", "are_served", "keep_experts"]


class _Experts(nn.Module):
    """Experts on weights `(experts, outputs, inputs)`, those of gates first, and biases `(experts, outputs)` or None.

    Few tokens are multiplied by the kernels, at the speed at which memory is read.
    """

    gate_up_proj: nn.Parameter
    gate_up_proj_bias: nn.Parameter | None
    down_proj: nn.Parameter
    down_proj_bias: nn.Parameter | None

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__()
        self._library = library

    def forward(self, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Return each token's sum of the outputs of its `chosen` experts `(tokens, count)`, times their `shares`."""
        output = torch.zeros_like(hidden)
        for expert in chosen.unique().tolist():
            tokens, places = torch.where(chosen == expert)
            both = self._product(hidden[tokens], self.gate_up_proj, self.gate_up_proj_bias, expert)
            gated = self.gated(*both.chunk(2, -1))
            made = self._product(gated, self.down_proj, self.down_proj_bias, expert)
            output.index_add_(0, tokens, made * shares[tokens, places, None])
        return output

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return the activation."""
        raise NotImplementedError

    def _product(
        self, inputs: Tensor, weights: Tensor, biases: Tensor | None, expert: int
    ) -> Tensor:
        own, bias = weights[expert], None if biases is None else biases[expert]
        functions = functions_for(self._library, inputs.dtype, own.dtype)
        if len(inputs) <= functions.most_linear_rows and not torch.is_grad_enabled():
            return functions.multiply(LinearFacts.of(own, bias), inputs)
        return (multiply if own.dtype is inputs.dtype else _multiply_widened)(inputs, own, bias)

    def _keep(self, name: str, weights: Tensor | None, dtype: torch.dtype | None = None) -> None:
        if weights is None:
            self.register_parameter(name, None)
            return
        (copy,) = empty_copies([weights], dtype)
        kept = nn.Parameter(copy.copy_(weights.detach()), requires_grad=False)
        self.register_parameter(name, kept)


class CompactExperts(_Experts):
    """The experts of Mixtral and Qwen3-MoE in float32, on weights of 16 bits that it widens."""

    def __init__(self, experts: Any, dtype: torch.dtype, library: ctypes.CDLL) -> None:
        super().__init__(library)
        self.act_fn = experts.act_fn
        self._keep("gate_up_proj", experts.gate_up_proj, dtype)
        self._keep("gate_up_proj_bias", None)
        self._keep("down_proj", experts.down_proj, dtype)
        self._keep("down_proj_bias", None)
        self.train(experts.training)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """See `_Experts`."""
        activated: Tensor = self.act_fn(gate)
        return activated * up


class TurnedExperts(_Experts):
    """The experts of gpt-oss, whose stock weights are `(experts, inputs, outputs)`, gates and others in turns."""

    def __init__(self, experts: Any, dtype: torch.dtype, library: ctypes.CDLL) -> None:
        super().__init__(library)
        self.alpha, self.limit = float(experts.alpha), float(experts.limit)
        self._keep("gate_up_proj", _in_halves(experts.gate_up_proj.transpose(1, 2)), dtype)
        self._keep("gate_up_proj_bias", _in_halves(experts.gate_up_proj_bias))
        self._keep("down_proj", experts.down_proj.transpose(1, 2), dtype)
        self._keep("down_proj_bias", experts.down_proj_bias)
        self.train(experts.training)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """See `_Experts`."""
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self.alpha))


def are_served(experts: nn.Module, dtype: torch.dtype) -> bool:
    """Return True if the kernels multiply by the experts' weights, held in a dtype."""
    inputs = 1 if _are_of_gpt_oss(experts) else 2
    weights = [p for p in experts.parameters(recurse=False) if p.dim() == 3]
    fits = all(weight.shape[inputs] % vector_width(dtype) == 0 for weight in weights)
    return fits and not (experts._forward_hooks or experts._forward_pre_hooks)


@torch.no_grad()
def keep_experts(
    network: nn.Module, library: ctypes.CDLL, dtypes: Mapping[nn.Module, torch.dtype]
) -> None:
    """Replace the experts in `dtypes`, and those of gpt-oss that the kernels serve, in place."""
    child: Any
    for parent, name, child in child_modules(network):
        if _are_of_gpt_oss(child):
            dtype = dtypes.get(child, child.down_proj.dtype)
            if not are_served(child, dtype):
                continue
            setattr(parent, name, TurnedExperts(child, dtype, library))
        elif child in dtypes and not isinstance(child, nn.Linear):
            setattr(parent, name, CompactExperts(child, dtypes[child], library))
        else:
            continue
        child.gate_up_proj = child.down_proj = None  # `dtypes` keeps the module


def _are_of_gpt_oss(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "GptOssExperts" and kind.__module__.startswith("transformers.models.")


_multiply_widened: Final = in_float32(multiply)


def _in_halves(weights: Tensor) -> Tensor:
    return torch.cat([weights[:, ::2], weights[:, 1::2]], 1)
