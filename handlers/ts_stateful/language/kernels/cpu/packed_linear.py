"""Linear layers in oneDNN's blocked layout, which a CPU reads fastest."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ts_stateful.language.kernels.cpu.replace_linears import child_modules, replace_linears

__all__ = ["PackedLinear", "can_pack", "has_operators", "pack", "pack_towers", "unpack"]

_ROWS = (
    32  # oneDNN chooses the same blocks for any number of rows except 1, for which it chooses none
)


class PackedLinear(nn.Module):
    """An `nn.Linear` whose `weight` is a parameter in oneDNN's blocks.

    A decode step on a CPU is bound by reading weights. A plain product of few rows does not reach the memory's speed, a blocked
    one does. `torch.ops.mkldnn` are the operators that torch's compiler emits for frozen weights. The weight keeps shape, dtype
    and device, and is opaque to all but a few operators. It has no gradients.
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
        """Map `(..., in_features)` to `(..., out_features)`."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            input, self.weight, self.bias, "none", [], ""
        )
        return output

    def unpacked(self) -> nn.Linear:
        """Return the plain linear layer, bit for bit."""
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(self.weight.to_dense(), requires_grad=False)
        linear.register_parameter("bias", self.bias)
        return linear.train(self.training)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if torch has the operators here and the processor benefits from them.

    This was measured with AVX-512 only. Without it, one packed row takes longer than a plain one.
    """
    if device.type != "cpu" or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    return has_operators(dtype)


@torch.no_grad()
def pack(network: nn.Module) -> int:
    """Replace the linear layers of a network by packed ones, in place; return their number.

    Subclasses of `nn.Linear`, layers with hooks and small ones stay. A weight that another module shares, such as an output
    layer tied to the embeddings, is held twice. All others are held once.
    """
    return replace_linears(network, PackedLinear)


def pack_towers(network: PreTrainedModel) -> int:
    """Pack the linear layers of what sees or hears, projectors included, which always have many rows; return their number.

    In float32, where blocks are the fastest for many rows; bfloat16 is not always multiplied by oneDNN.
    """
    if network.dtype is not torch.float32 or not can_pack(network.device, network.dtype):
        return 0
    text = {network.get_decoder(), network.get_output_embeddings()}
    if network.base_model in text:
        return 0
    parts = {*network.children(), *network.base_model.children()}
    return sum(pack(part) for part in parts if text.isdisjoint(part.modules()))


@torch.no_grad()
def unpack(network: PreTrainedModel) -> None:
    """Undo `pack`: restore the stock model's layers and ties, bit for bit."""
    unpacked: dict[nn.Module, nn.Linear] = {}
    for parent, name, child in child_modules(network):
        if isinstance(child, PackedLinear):
            if child not in unpacked:
                unpacked[child] = child.unpacked()
            setattr(parent, name, unpacked[child])
    network.tie_weights()


def has_operators(dtype: torch.dtype) -> bool:
    """Return True if torch has the operators of oneDNN that are called here, for numbers that this processor multiplies."""
    names = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
    available = torch.backends.mkldnn.is_available()
    if not (available and all(hasattr(torch.ops.mkldnn, name) for name in names)):
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32
