"""The compiled library of CPU kernels, as language models call it: its functions, and the structures that they read."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from ts_stateful.language.kernels.cpu.rounded import Rounded
from ts_stateful.language.kv.spans import Table

__all__ = [
    "LANES",
    "AttentionFacts",
    "Functions",
    "LinearFacts",
    "StepFacts",
    "functions_for",
    "num_splits",
    "vector_width",
]

LANES: Final = 16  # all dimensions are multiples of it
_SHARE: Final = 256  # minimum tokens of a split
_TOGETHER: Final = 16  # queries of rows that are computed together, see `attention.h`
_NAMES: Final = {torch.float32: "float32", torch.bfloat16: "bfloat16"}  # of dtypes in the library
_WIDENED: Final = {
    torch.bfloat16: "wide_bfloat16",
    torch.float16: "wide_float16",
    torch.int8: "wide_int8",
}


class StepFacts(ctypes.Structure):
    """`Step`: a table's buffer and numbers, a layer's index, and its window (0: none)."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("table", "num_tokens", "num_rows", "num_spans", "layer", "window")
    ]


class AttentionFacts(ctypes.Structure):
    """`Layer`: key heads, query heads that share one, dimensions, and the rule (soft cap 0: none)."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("heads", "group", "key_dim", "value_dim")),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    ]


class LinearFacts(ctypes.Structure):
    """`Linear`: the addresses of a layer's parameters, its numbers of inputs and outputs, and its units if it has 8 bits."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_int64) for name in ("in_", "out")),
        ("unit", ctypes.c_void_p),
    ]

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None) -> LinearFacts:
        """Describe a layer by its weights `(out, in)` and biases, which must stay where they are."""
        outputs, inputs = weight.shape
        return cls(weight.data_ptr(), None if bias is None else bias.data_ptr(), inputs, outputs)

    def rounded(self, dtype: torch.dtype) -> tuple[LinearFacts, Rounded]:
        """Describe the layer with its weights, which are of this dtype, rounded to 8 bits; these must stay where they are."""
        shape = self.out, self.in_
        memory = (ctypes.c_byte * (self.out * self.in_ * dtype.itemsize)).from_address(self.weight)
        rounded = Rounded.of(torch.frombuffer(memory, dtype=dtype).view(shape))
        numbers, units = (part.data_ptr() for part in rounded)
        return LinearFacts(numbers, self.bias, self.in_, self.out, units), rounded

    @classmethod
    def part(cls, linear: nn.Linear, begin: int, num: int) -> LinearFacts:
        """Describe the layer of `num` of the outputs of another, from output `begin` on."""
        outputs = slice(begin, begin + num)
        return cls.of(linear.weight[outputs], None if linear.bias is None else linear.bias[outputs])


class Functions(NamedTuple):
    """The library's functions for a dtype of states and one of weights.

    `most_rows` of a step go through layers in one call, with `most_linear_rows` it multiplies faster than torch, and with
    `most_listed_rows` a shortlist is faster.
    """

    write: Callable[..., None]
    attend: Callable[..., None]
    decode_scratch: Callable[..., int]
    decode_layers: Callable[..., None]
    multiply_linear: Callable[..., None]
    find_candidates: Callable[..., bool]
    draw_rows: Callable[..., None]  # of logits in float32
    forbid_rows: Callable[..., None]  # in them
    spread_threads: Callable[[int], None]
    most_rows: int
    most_linear_rows: int
    most_listed_rows: int

    def multiply(self, linear: LinearFacts, inputs: Tensor) -> Tensor:
        """Map `(..., inputs)` to `(..., outputs)`, up to `most_rows` of them."""
        inputs = inputs.contiguous()
        scratch = inputs.new_empty(3 * inputs.numel() // 2)  # see `room` in `src/linear.h`
        outputs = inputs.new_empty(*inputs.shape[:-1], linear.out)
        self.multiply_linear(
            ctypes.byref(linear),
            inputs.data_ptr(),
            inputs.numel() // linear.in_,
            torch.get_num_threads(),
            scratch.data_ptr(),
            outputs.data_ptr(),
        )
        return outputs


def vector_width(dtype: torch.dtype) -> int:
    """Return the numbers in a vector; the inputs of a layer are a multiple of it."""
    return 4 * LANES // dtype.itemsize


def num_splits(table: Table, heads: int, group: int) -> int:
    """Return the number of parts of each row's tokens, for each key head of `group` queries, that gives all threads work."""
    # Rows of one session are computed together.
    most = max(table.num_spans, table.num_rows * group // _TOGETHER)
    wanted = -(-2 * torch.get_num_threads() // (min(table.num_rows, most) * heads))
    if wanted <= 1:
        return 1
    longest = int(table.buffer[table.num_tokens : 2 * table.num_tokens].max()) + 1
    return max(1, min(wanted, longest // _SHARE))


@cache
def functions_for(
    library: ctypes.CDLL, dtype: torch.dtype, weights: torch.dtype | None = None
) -> Functions:
    """Return the library's functions for states and inputs of a dtype, float32 or bfloat16.

    `weights` is the dtype of linear layers' weights if it is another one: of 16 or 8 bits, which are widened to float32.
    """
    word, address = ctypes.c_int64, ctypes.c_void_p
    own = _NAMES[dtype]
    of_weights = own if weights in (None, dtype) else _WIDENED[weights]

    of_logits = (address, word, word, address, word, address)
    declared = partial(_declared, library)
    library.most_rows.restype = word
    library.spread_threads.restype, library.spread_threads.argtypes = None, [word]
    return Functions(
        write=declared("write", own, None, *(address, address), *(word,) * 4, ctypes.c_int),
        attend=declared(
            "attend", own, None, *(address,) * 3, word, word, address, word, address, address
        ),
        decode_scratch=declared("decode_scratch", of_weights, word, address, word, word, word),
        decode_layers=declared(
            "decode_layers",
            of_weights,
            None,
            *(address, address, word, *(address,) * 3, word, word, address, address, word, address),
        ),
        multiply_linear=declared(
            "multiply_linear", of_weights, None, *(address, address, word, word, address, address)
        ),
        find_candidates=declared(
            "find_candidates",
            of_weights,
            ctypes.c_bool,
            *(address, address, word, address, word, address, address, address),
        ),
        draw_rows=declared("draw_rows", "float32", None, *of_logits),
        forbid_rows=declared("forbid_rows", "float32", None, *of_logits),
        most_rows=library.most_rows(),
        most_linear_rows=declared("most_linear_rows", of_weights, word)(),
        most_listed_rows=declared("most_listed_rows", of_weights, word)(),
        spread_threads=library.spread_threads,
    )


def _declared(
    library: ctypes.CDLL, name: str, kind: str, result: type[Any] | None, *arguments: Any
) -> Any:
    function = getattr(library, f"{name}_{kind}")
    function.restype, function.argtypes = result, arguments
    return function
