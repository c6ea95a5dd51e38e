"""Float32 weights that bfloat16 holds exactly, as those of most checkpoints."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from ts_stateful.language.kernels.cpu.compiled_linear import CompiledLinear
from ts_stateful.language.kernels.cpu.decoder_layout import UnknownDecoderError, find_decoder
from ts_stateful.language.kernels.cpu.replace_linears import is_replaceable

__all__ = ["find_compact"]


def find_compact(network: PreTrainedModel) -> frozenset[nn.Module]:
    """Return the linear layers of a float32 network whose weights may be held in bfloat16.

    These are those of a known decoder, and the output layer by itself. One call computes the decoder layers, so either all of
    their weights have another dtype or none has. Images, whose many patches are bound by arithmetic, gain nothing.
    """
    if network.dtype is not torch.float32:
        return frozenset()
    try:
        decoder = find_decoder(network)
    except UnknownDecoderError:
        return frozenset()
    modules = [module for layer in decoder.layers for module in layer.modules()]
    linears = [module for module in modules if isinstance(module, nn.Linear)]
    matrices = [p for module in modules for p in module.parameters(recurse=False) if p.dim() > 1]
    only_linears = len(matrices) == len(linears)  # experts' weights are no linear layers
    found = linears if only_linears and all(map(_fits, linears)) else []
    return frozenset([*found, *filter(_fits, [decoder.head])])


def _fits(linear: nn.Linear) -> bool:
    weight = linear.weight
    return (
        is_replaceable(linear)
        and CompiledLinear.serves(linear, torch.bfloat16)
        and torch.equal(weight.bfloat16().float(), weight)
    )
