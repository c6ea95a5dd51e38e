"""Linear layers on plain float32 weights: compiled for steps of few rows, by the faster of torch's libraries for many."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as multiply

from ts_stateful.language.kernels.cpu.library import LANES, LinearFacts, declare_functions
from ts_stateful.language.kernels.cpu.packed_linear import has_operators
from ts_stateful.language.kernels.cpu.replace_linears import replace_linears

__all__ = ["CompiledLinear", "compile_linears"]

logger = logging.getLogger(__name__)

_TOLERANCE = 1e-4  # of the largest output
_MOST_ROWS = 32  # with more, torch is as fast or faster
_VERIFIED_ROWS = (1, 2, 7, 32, 33)
_TIMED = (256, 512, 1408)  # rows, inputs and outputs
_TIMES = 7


class CompiledLinear(nn.Linear):
    """A float32 `nn.Linear` on the same parameters, which must stay where they are.

    Few rows are read at the speed of the memory; torch reaches it only with packed weights (`packed_linear`). Those take the
    plain form away and do not pay for a single row. torch computes steps of many rows, with oneDNN if `onednn`, else with the
    library of its build, usually MKL.
    """

    def __init__(self, linear: nn.Linear, library: ctypes.CDLL, *, onednn: bool = False) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight = linear.weight
        self.register_parameter("bias", linear.bias)
        self.train(linear.training)
        self._facts = LinearFacts.of(linear)
        self._onednn = onednn
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
        if not num_rows or torch.is_grad_enabled():
            return multiply(input, self.weight, self.bias)
        if num_rows > _MOST_ROWS:
            many = _by_onednn if self._onednn else multiply
            return many(input, self.weight, self.bias)
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
    onednn = _is_onednn_faster()

    def make(linear: nn.Linear) -> CompiledLinear | None:
        if not CompiledLinear.serves(linear):
            return None
        made = CompiledLinear(linear, library, onednn=onednn)
        shape = (linear.in_features, linear.out_features, linear.bias is not None)
        if shape not in verified:
            verified[shape] = _agrees(made, linear)
        return made if verified[shape] else None

    return replace_linears(network, make)


def _by_onednn(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    output: Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
    return output


@torch.inference_mode()
def _is_onednn_faster() -> bool:
    """Return True if oneDNN multiplies many rows faster than the library that torch calls; this depends on the processor."""
    if not has_operators():
        return False
    rows, inputs, outputs = _TIMED
    input, weight = torch.ones(rows, inputs), torch.ones(outputs, inputs)

    def seconds(function: Callable[[Tensor, Tensor, None], Tensor]) -> float:
        began_at = time.perf_counter()
        function(input, weight, None)
        return time.perf_counter() - began_at

    pairs = [(seconds(_by_onednn), seconds(multiply)) for _ in range(_TIMES)]
    own, usual = (1000 * min(times) for times in zip(*pairs, strict=True))
    is_faster = bool(own < usual)
    logger.info(
        "%s multiplies many rows: %d x %d x %d took oneDNN %.2f ms, torch's usual library %.2f ms",
        *("oneDNN" if is_faster else "torch's usual library", *_TIMED, own, usual),
    )
    return is_faster


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
