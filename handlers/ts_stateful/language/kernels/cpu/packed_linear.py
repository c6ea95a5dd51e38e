"""Linear layers of a stock model, in the layout that the CPU reads fastest.

A decode step on a CPU is bound by reading weights, and a plain matrix product of few rows does not read them at the speed of
the memory. oneDNN, which torch brings along, does once they are in blocks of its own; `torch.ops.mkldnn` are the operators
that torch's compiler emits for frozen weights. The modules are exchanged in place and put back by `unpack`, bit for bit.

Owns the exchange and the judgement whether it is worth it. Knows nothing of what the model is for.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ts_stateful.language.kernels.cpu.replace_linears import children, exchange

__all__ = ["PackedLinear", "can_pack", "pack", "unpack"]

_ROWS = 32  # for which oneDNN chooses the blocks: the same for any number but 1, for which it chooses none


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
    return exchange(network, PackedLinear)


@torch.no_grad()
def unpack(network: PreTrainedModel) -> None:
    """Undoes `pack`: the layers and ties of the stock model, with the same weights to the last bit."""
    unpacked: dict[nn.Module, nn.Linear] = {}
    for parent, name, child in children(network):
        if isinstance(child, PackedLinear):
            if child not in unpacked:
                unpacked[child] = child.unpacked()
            setattr(parent, name, unpacked[child])
    network.tie_weights()


def _has_operators() -> bool:
    names = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
    return all(hasattr(torch.ops.mkldnn, name) for name in names)
