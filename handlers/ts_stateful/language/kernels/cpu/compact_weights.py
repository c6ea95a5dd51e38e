"""Float32 weights that 16 bits hold exactly, as those of most checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import nn
from transformers import PreTrainedModel

from ts_stateful.language.kernels.cpu.compiled_linear import CompiledLinear
from ts_stateful.language.kernels.cpu.kept_experts import are_served
from ts_stateful.language.kernels.cpu.replace_linears import is_replaceable
from ts_stateful.language.kernels.decoder_layout import UnknownDecoderError, find_decoder

__all__ = ["find_compact"]

_DTYPES: Final = (torch.bfloat16, torch.float16)
_OUTPUTS: Final = (
    1024  # whose weights are compared at a time: of an output layer, copies would take gigabytes
)


def find_compact(network: PreTrainedModel) -> dict[nn.Module, torch.dtype]:
    """Return the linear layers and experts of a float32 network whose weights may be held in 16 bits, and in which dtype.

    These are those of a known decoder, and the output layer by itself. One call computes the decoder layers, so all of their
    weights have the same dtype, but for those of routers, which stay. Images gain nothing: arithmetic bounds the time of their
    many patches.
    """
    if network.dtype is not torch.float32:
        return {}
    try:
        decoder = find_decoder(network)
    except UnknownDecoderError:
        return {}
    modules = [module for layer in decoder.layers for module in layer.modules()]
    groups = [[decoder.head], [m for m in modules if isinstance(m, nn.Linear) or _has_experts(m)]]
    found = ((group, _dtype_of(group)) for group in groups)
    return {module: dtype for group, dtype in found if dtype for module in group}


def _has_experts(module: nn.Module) -> bool:
    return any(parameter.dim() == 3 for parameter in module.parameters(recurse=False))


def _dtype_of(modules: Sequence[nn.Module]) -> torch.dtype | None:
    """Return a dtype that holds the weights of all of these layers."""
    return next((d for d in _DTYPES if all(_fits(module, d) for module in modules)), None)


def _fits(module: nn.Module, dtype: torch.dtype) -> bool:
    if isinstance(module, nn.Linear):
        weights = [module.weight]
        serves = is_replaceable(module) and CompiledLinear.serves(module, dtype)
    else:
        weights = [p for p in module.parameters(recurse=False) if p.dim() == 3]
        serves = are_served(module, dtype)
    return serves and all(
        torch.equal(some.to(dtype).float(), some)
        for weight in weights
        for some in weight.flatten(0, -2).split(_OUTPUTS)
    )
