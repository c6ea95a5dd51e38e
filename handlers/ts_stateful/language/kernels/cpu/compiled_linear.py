"""Linear layers on plain float32 weights, compiled for steps of few rows."""

from __future__ import annotations

import ctypes
import logging

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as multiply

from ts_stateful.language.kernels.cpu.library import LANES, LinearFacts, declare_functions
from ts_stateful.language.kernels.cpu.replace_linears import replace_linears

__all__ = ["CompiledLinear", "compile_linears"]

logger = logging.getLogger(__name__)

_TOLERANCE = 1e-4  # of the largest output
_MOST_ROWS = 32  # with more, torch is as fast
_VERIFIED_ROWS = (1, 2, 7, 32)


class CompiledLinear(nn.Linear):
    """A float32 `nn.Linear` on the same parameters, which must stay where they are.

    Few rows are read at the speed of the memory; torch reaches it only with packed weights (`packed_linear`). Those take the
    plain form away and do not pay for a single row. torch computes steps of many rows.
    """

    def __init__(self, linear: nn.Linear, library: ctypes.CDLL) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight = linear.weight
        self.register_parameter("bias", linear.bias)
        self.train(linear.training)
        self._facts = LinearFacts.of(linear)
        self._library = declare_functions(library)

    @staticmethod
    def serves(linear: nn.Linear) -> bool:
        """Return True if the kernel can read a layer's parameters."""
        parameters = [linear.weight] if linear.bias is None else [linear.weight, linear.bias]
        return linear.in_features % LANES == 0 and all(
            p.dtype is torch.float32 and p.device.type == "cpu" and p.is_contiguous()
            for p in parameters
        )

    def forward(self, input: Tensor) -> Tensor:
        """Map `(..., in_features)` to `(..., out_features)`."""
        num_rows = input.numel() // self.in_features
        if not 0 < num_rows <= _MOST_ROWS or torch.is_grad_enabled():
            return multiply(input, self.weight, self.bias)
        input = input.contiguous()
        scratch = torch.empty_like(input)
        output = input.new_empty(*input.shape[:-1], self.out_features)
        self._library.multiply_linear(
            ctypes.byref(self._facts),
            input.data_ptr(),
            num_rows,
            torch.get_num_threads(),
            scratch.data_ptr(),
            output.data_ptr(),
        )
        return output


def compile_linears(network: nn.Module, library: ctypes.CDLL) -> int:
    """Replace linear layers in place where the compiled ones agree with torch; return their number."""
    verified: dict[tuple[int, int, bool], bool] = {}

    def make(linear: nn.Linear) -> CompiledLinear | None:
        if not CompiledLinear.serves(linear):
            return None
        made = CompiledLinear(linear, library)
        shape = (linear.in_features, linear.out_features, linear.bias is not None)
        if shape not in verified:
            verified[shape] = _agrees(made, linear)
        return made if verified[shape] else None

    return replace_linears(network, make)


@torch.inference_mode()
def _agrees(made: CompiledLinear, linear: nn.Linear) -> bool:
    generator = torch.Generator().manual_seed(0)
    for num_rows in _VERIFIED_ROWS:
        inputs = torch.randn(num_rows, linear.in_features, generator=generator)
        expected, found = linear(inputs), made(inputs)
        apart, largest = float((found - expected).abs().max()), float(expected.abs().max())
        if not apart <= _TOLERANCE * largest:
            logger.warning(
                "%s stays torch's: compiled outputs differ by %.2g of %.2g", linear, apart, largest
            )
            return False
    return True
