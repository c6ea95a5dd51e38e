"""Float32 weights that 16 bits hold exactly, as those of most checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import nn
from transformers import PreTrainedModel

from ts_stateful.language.kernels.cpu.compiled_linear import CompiledLinear
from ts_stateful.language.kernels.cpu.decoder_layout import UnknownDecoderError, find_decoder
from ts_stateful.language.kernels.cpu.replace_linears import is_replaceable

__all__ = ["find_compact"]

_DTYPES: Final = (torch.bfloat16, torch.float16)
_OUTPUTS: Final = 1024  # whose weights are compared at a time: of an output layer, copies would take gigabytes


def find_compact(network: PreTrainedModel) -> dict[nn.Module, torch.dtype]:
    """Return the linear layers of a float32 network whose weights may be held in 16 bits, and in which dtype.

    These are those of a known decoder, and the output layer by itself. One call computes the decoder layers, so all of their
    weights have the same dtype. Images gain nothing: arithmetic bounds the time of their many patches.
    """
    if network.dtype is not torch.float32:
        return {}
    try:
        decoder = find_decoder(network)
    except UnknownDecoderError:
        return {}
    modules = [module for layer in decoder.layers for module in layer.modules()]
    linears = [module for module in modules if isinstance(module, nn.Linear)]
    matrices = [p for module in modules for p in module.parameters(recurse=False) if p.dim() > 1]
    groups = [[decoder.head]]
    if len(matrices) == len(linears):  # experts' weights are no linear layers
        groups.append(linears)
    found = ((group, _dtype_of(group)) for group in groups)
    return {linear: dtype for group, dtype in found if dtype for linear in group}


def _dtype_of(linears: Sequence[nn.Linear]) -> torch.dtype | None:
    """Return a dtype that holds the weights of all of these layers."""
    return next((d for d in _DTYPES if all(_fits(linear, d) for linear in linears)), None)


def _fits(linear: nn.Linear, dtype: torch.dtype) -> bool:
    if not (is_replaceable(linear) and CompiledLinear.serves(linear, dtype)):
        return False
    return all(torch.equal(some.to(dtype).float(), some) for some in linear.weight.split(_OUTPUTS))
