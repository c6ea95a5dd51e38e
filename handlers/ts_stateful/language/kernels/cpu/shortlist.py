"""The logits that decide on the next token, by an output layer of which few weights are read."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from ts_stateful.language.kernels.cpu.compiled_linear import CompiledLinear
from ts_stateful.language.kernels.cpu.library import LinearFacts, functions_for
from ts_stateful.language.kernels.cpu.rounded import Rounded, row_blocks
from ts_stateful.language.kernels.cpu.weight_memory import use_huge_pages
from ts_stateful.language.network.sampler import SamplingRow, sample, settings_of

__all__ = ["Shortlist"]

logger = logging.getLogger(__name__)

# Of the weights' length: more than float32 sums of their products are wrong by; and what inputs in 16 bits are, for their root.
_ROUNDING, _NARROWING = 2.0**-15, 2.0**-15.9
_LEAST: Final = 1e-18  # of a bound: squares of smaller weights are 0 in float32
_MOST_VAIN: Final = 8  # calls in vain; after each of them twice as many calls do not try
_VERIFIED: Final = (SamplingRow(), SamplingRow(1.0), SamplingRow(0.7, top_p=0.5))
_VERIFIED_ROWS: Final = (1, 2, 6)
_TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 1e-2}  # of the largest output


class _ShortlistFacts(ctypes.Structure):
    """`Shortlist`: the layer, and the addresses of its weights in 8 bits, their units and their errors."""

    _fields_ = [
        ("linear", LinearFacts),
        *((name, ctypes.c_void_p) for name in ("weight", "unit", "error")),
    ]


class Shortlist:
    """The outputs that decide on the next token, of a layer of very many, for few rows.

    A copy of the weights in 8 bits, with bounds of its errors, shows which outputs may be the highest, or win a race: a few of
    a vocabulary. These are computed from the real weights, see `src/shortlist.h`. So the token is the same, and half to a
    quarter of the bytes are read.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype, library: ctypes.CDLL) -> None:
        functions = functions_for(library, dtype, linear.weight.dtype)
        self._find, self._most_rows = functions.find_candidates, functions.most_listed_rows
        self._linear, self._dtype = linear, dtype
        self._rounded = Rounded.of(linear.weight)
        use_huge_pages([self._rounded.numbers])
        self._errors = _bounds(linear.weight, self._rounded)
        self._facts = _ShortlistFacts(
            LinearFacts.of(linear.weight, linear.bias),
            *(part.data_ptr() for part in (*self._rounded, self._errors)),
        )
        self._rest = self._vain = 0

    @classmethod
    def of(cls, head: nn.Linear, dtype: torch.dtype, library: ctypes.CDLL) -> Shortlist | None:
        """Return the verified shortlist of an output layer whose inputs have this dtype; None where it has none."""
        if not (isinstance(head, CompiledLinear) or CompiledLinear.serves(head)):
            return None
        shortlist = cls(head, dtype, library)
        reason = shortlist._difference()
        if reason:
            logger.warning("all logits are computed where few would do: %s", reason)
            return None
        logger.info("the output layer has a copy of 8 bits a weight, for most replies")
        return shortlist

    def __call__(
        self, inputs: Tensor, draws: Sequence[SamplingRow], divisor: float = 1.0
    ) -> Tensor | None:
        """Map `(rows, in_features)` to `(rows, out_features)`: what decides on each row's draw, and others or lower estimates.

        Each draw has `needs_few`, or may be wrong. `divisor` is what makes outputs logits. Return None where the layer must be
        called, because there are too many rows, or too many outputs may decide.
        """
        # A quotient of 16 bits is another logit, and top-p compares sums of all.
        divides = divisor != 1 and inputs.dtype is torch.bfloat16
        size = self._linear.out_features
        num_open = sum(row.top_p < 1 and not 0 < row.top_k < size for row in draws)
        if len(inputs) + num_open > self._most_rows or self._rest or (divides and num_open):
            self._rest = max(0, self._rest - 1)
            return None
        assert len(draws) == len(inputs)
        outputs = torch.empty(len(inputs), size)
        packed, wide = torch.empty_like(inputs), torch.empty(inputs.shape)
        settings = settings_of(draws, size)
        settings[:, 0] *= divisor
        is_short = self._find(
            ctypes.byref(self._facts),
            inputs.data_ptr(),
            len(inputs),
            settings.ctypes.data,
            torch.get_num_threads(),
            packed.data_ptr(),
            wide.data_ptr(),
            outputs.data_ptr(),
        )
        self._vain = 0 if is_short else min(self._vain + 1, _MOST_VAIN)
        self._rest = 2**self._vain - 2 if self._vain else 0
        return outputs.to(inputs.dtype) if is_short else None

    @torch.inference_mode()
    def _difference(self) -> str:
        """Return how outputs that decide for random inputs differ from the layer's; empty if they do not."""
        if not self._errors.isfinite().all():
            return "the output layer has weights that are no finite numbers"
        generator = torch.Generator().manual_seed(0)
        for num_rows in _VERIFIED_ROWS:
            inputs = torch.randn(num_rows, self._linear.in_features, generator=generator)
            inputs = inputs.to(self._dtype)
            draws = [_VERIFIED[row % len(_VERIFIED)] for row in range(num_rows)]
            expected, found = self._linear(inputs), self(inputs, draws)
            self._rest = self._vain = 0
            if found is None:
                continue
            tokens = torch.tensor([sample(expected, draws), sample(found, draws)]).T
            apart = float((found - expected).gather(-1, tokens).abs().max())
            largest = float(expected.abs().max())
            if not apart <= _TOLERANCE[self._dtype] * largest:
                return f"outputs differ by {apart:.2g} of {largest:.2g}"
        return ""


def _bounds(weights: Tensor, rounded: Rounded) -> Tensor:
    """Return how long the differences of each row of weights `(out, in)` from the rounded ones are at most, `(out,)`."""
    bounds = torch.empty(len(weights))
    rounding = _ROUNDING + _NARROWING * weights.shape[1] ** 0.5
    for some in row_blocks(weights):
        rows = weights.detach()[some].float()
        apart = torch.linalg.vector_norm(
            rows - rounded.numbers[some] * rounded.units[some, None], dim=-1
        )
        bounds[some] = 1.001 * apart + rounding * torch.linalg.vector_norm(rows, dim=-1)
    return bounds.clamp_min_(_LEAST)
