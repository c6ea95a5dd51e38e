"""Linear layers on plain weights: compiled for steps of few rows, by the faster of torch's libraries for many."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as multiply

from ts_stateful.language.kernels.cpu.kept_experts import keep_experts
from ts_stateful.language.kernels.cpu.library import LinearFacts, functions_for, vector_width
from ts_stateful.language.kernels.cpu.packed_linear import has_operators
from ts_stateful.language.kernels.cpu.replace_linears import replace_linears
from ts_stateful.language.kernels.cpu.weight_memory import empty_copies
from ts_stateful.language.kernels.cpu.widening import Multiply, in_float32

__all__ = ["CompiledLinear", "compile_linears"]

logger = logging.getLogger(__name__)

_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 1e-2}  # of the largest output
_VERIFIED_ROWS = (1, 2, 7, 20, 33, 64, 65)
_TIMED = (256, 512, 1408)  # rows, inputs and outputs
_TIMES = 7


class CompiledLinear(nn.Linear):
    """An `nn.Linear` on the same parameters, which must stay where they are.

    Few rows are read at the speed of the memory; torch reaches it only with packed weights (`packed_linear`). Those take the
    plain form away and do not pay for a single row. torch computes steps of many rows, by `many`.

    A float32 layer can hold its weights in a dtype of 16 bits, `weights`, and widens them where they are multiplied.
    """

    def __init__(
        self,
        linear: nn.Linear,
        library: ctypes.CDLL,
        many: Multiply = multiply,
        weights: torch.dtype | None = None,
    ) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        dtype = linear.weight.dtype
        self.weight, self._many = linear.weight, many
        if weights not in (None, dtype):
            (kept,) = empty_copies([linear.weight], weights)
            self.weight = nn.Parameter(kept.copy_(linear.weight.data), requires_grad=False)
            self._many = in_float32(many)
        self.register_parameter("bias", linear.bias)
        self.train(linear.training)
        self._facts = LinearFacts.of(self.weight, linear.bias)
        self._functions = functions_for(library, dtype, weights)

    @staticmethod
    def serves(linear: nn.Linear, weights: torch.dtype | None = None) -> bool:
        """Return True if the kernel can read a layer's parameters, or its weights in another dtype."""
        parameters = [linear.weight] if linear.bias is None else [linear.weight, linear.bias]
        dtype = linear.weight.dtype
        fits = dtype in _TOLERANCE and linear.in_features % vector_width(weights or dtype) == 0
        return fits and all(
            p.dtype is dtype and p.device.type == "cpu" and p.is_contiguous() for p in parameters
        )

    def forward(self, input: Tensor) -> Tensor:
        """Map `(..., in_features)` to `(..., out_features)`."""
        num_rows = input.numel() // self.in_features
        if not num_rows or torch.is_grad_enabled():
            return multiply(input, self.weight.to(input.dtype), self.bias)
        if num_rows > self._functions.most_linear_rows:
            self._functions.spread_threads(torch.get_num_threads())  # or two may share a processor
            return self._many(input, self.weight, self.bias)
        return self._functions.multiply(self._facts, input)


def compile_linears(
    network: nn.Module,
    library: ctypes.CDLL,
    compact: Mapping[nn.Module, torch.dtype] = MappingProxyType({}),
) -> int:
    """Replace linear layers in place where the compiled ones agree with torch; return their number.

    Those in `compact`, and experts there, hold their weights in another dtype.
    """
    keep_experts(network, library, compact)
    verified: dict[tuple[torch.Size, bool, torch.dtype], bool] = {}
    ways: dict[torch.dtype, Multiply] = {}

    def make(linear: nn.Linear) -> CompiledLinear | None:
        if not CompiledLinear.serves(linear):
            return None
        dtype = linear.weight.dtype
        if dtype not in ways:
            ways[dtype] = _fastest(dtype)
        weights = compact.get(linear, dtype)
        made = CompiledLinear(linear, library, ways[dtype], weights)
        kind = (linear.weight.shape, linear.bias is not None, weights)
        if kind not in verified:
            verified[kind] = _agrees(made, linear)
        if not verified[kind]:
            return None
        if weights is not dtype:  # `compact` keeps the module; its weights are not needed
            linear.weight = nn.Parameter(torch.empty(0))
        return made

    return replace_linears(network, make)


def _by_onednn(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    output: Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
    return output


@torch.inference_mode()
def _fastest(dtype: torch.dtype) -> Multiply:
    """Return the way of multiplying many rows that takes the least time; this depends on the processor."""
    ways: dict[str, Multiply] = {"torch's usual library": multiply}
    if has_operators(dtype):
        ways["oneDNN"] = _by_onednn
    if dtype is not torch.float32:
        ways["float32"] = in_float32(_fastest(torch.float32))
    rows, inputs, outputs = _TIMED
    input, weight = torch.ones(rows, inputs, dtype=dtype), torch.ones(outputs, inputs, dtype=dtype)

    def milliseconds(way: Multiply) -> float:
        began_at = time.perf_counter()
        way(input, weight, None)
        return 1000 * (time.perf_counter() - began_at)

    rounds = [[milliseconds(way) for way in ways.values()] for _ in range(_TIMES)]
    least = dict(zip(ways, map(min, zip(*rounds, strict=True)), strict=True))
    best = min(least, key=least.__getitem__)
    times = ", ".join(f"{name} {time:.2f} ms" for name, time in least.items())
    logger.info("%s multiplies many rows of %s: %d x %d x %d took %s", best, dtype, *_TIMED, times)
    return ways[best]


@torch.inference_mode()
def _agrees(made: CompiledLinear, linear: nn.Linear) -> bool:
    generator, dtype = torch.Generator().manual_seed(0), linear.weight.dtype
    for num_rows in _VERIFIED_ROWS:
        inputs = torch.randn(num_rows, linear.in_features, generator=generator).to(dtype)
        expected, found = linear(inputs), made(inputs)
        apart, largest = float((found - expected).abs().max()), float(expected.abs().max())
        if not apart <= _TOLERANCE[dtype] * largest:
            logger.warning(
                "%s stays torch's: compiled outputs differ by %.2g of %.2g", linear, apart, largest
            )
            return False
    return True
