"""Linear layers of a stock model, in the layout that the CPU reads fastest.

A decode step on a CPU is bound by reading weights, and a plain matrix product of few rows does not read them at the speed of
the memory. oneDNN, which torch brings along, does once they are in blocks of its own; `torch.ops.mkldnn` are the operators
that torch's compiler emits for frozen weights. The modules are exchanged in place and put back by `unpack`, bit for bit.

Owns the exchange and the judgement whether it is worth it. Knows nothing of what the model is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

__all__ = ["PackedLinear", "can_pack", "pack", "unpack"]

_ROWS = 32  # for which oneDNN chooses the blocks: the same for any number but 1, for which it chooses none
_SMALLEST = 1 << 16  # elements of a weight below which the call takes longer than the reading


class PackedLinear(nn.Module):
    """An `nn.Linear` whose `weight` is a parameter in oneDNN's blocks.

    It has the weight's shape, dtype and device, and is opaque to all but a few operators. No gradients.
    """

    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        blocks = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS)
        self.weight = nn.Parameter(blocks, requires_grad=False)
        self.register_parameter("bias", linear.bias)
        self.train(linear.training)

    def forward(self, input: Tensor) -> Tensor:
        """`(..., in_features)` to `(..., out_features)`."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            input, self.weight, self.bias, "none", [], ""
        )
        return output

    def unpacked(self) -> nn.Linear:
        """The linear layer that it was made of."""
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(self.weight.to_dense(), requires_grad=False)
        linear.register_parameter("bias", self.bias)
        return linear.train(self.training)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this build of torch has the operators, and this processor gains from them.

    That it does was measured with AVX-512 alone; without it, one row takes longer packed than plain.
    """
    if device.type != "cpu" or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    if not torch.backends.mkldnn.is_available() or not _has_operators():
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32


@torch.no_grad()
def pack(network: nn.Module) -> int:
    """Exchanges the linear layers of a network for packed ones, in place; returns how many.

    Subclasses of `nn.Linear`, layers with hooks and small ones stay. A weight that another module shares, such as that of
    an output layer tied to the embeddings, stays with the other one and is held twice; all others are held once.
    """
    packed: dict[nn.Module, PackedLinear] = {}
    for parent, name, child in _children(network):
        if _is_worthwhile(child):
            if child not in packed:
                packed[child] = PackedLinear(child)
            setattr(parent, name, packed[child])
    return len(packed)


@torch.no_grad()
def unpack(network: PreTrainedModel) -> None:
    """Undoes `pack`: the layers and ties of the stock model, with the same weights to the last bit."""
    unpacked: dict[nn.Module, nn.Linear] = {}
    for parent, name, child in _children(network):
        if isinstance(child, PackedLinear):
            if child not in unpacked:
                unpacked[child] = child.unpacked()
            setattr(parent, name, unpacked[child])
    network.tie_weights()


def _has_operators() -> bool:
    names = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
    return all(hasattr(torch.ops.mkldnn, name) for name in names)


def _children(network: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Every module but the network itself, with its parent and its name there; one with several parents comes several times."""
    for parent in list(network.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None:
                yield parent, name, child


def _is_worthwhile(module: nn.Module) -> TypeGuard[nn.Linear]:
    return (
        type(module) is nn.Linear
        and not (module._forward_hooks or module._forward_pre_hooks)
        and module.weight.numel() >= _SMALLEST
    )
