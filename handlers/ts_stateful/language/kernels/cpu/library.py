"""The compiled library of CPU kernels: its build, and the structures that it reads.

Threads are torch's: both use the process's one OpenMP runtime.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from ts_stateful.language.kernels.cpu.cache import load_or_compile
from ts_stateful.language.kv.spans import Table

__all__ = [
    "LANES",
    "AttentionFacts",
    "Functions",
    "LinearFacts",
    "StepFacts",
    "cache_folder",
    "functions_for",
    "is_worthwhile",
    "load_library",
    "num_splits",
    "vector_width",
]

logger = logging.getLogger(__name__)

LANES: Final = 16  # all dimensions are multiples of it
_SOURCE: Final = Path(__file__).parent / "src" / "kernels.cpp"
_HEADERS: Final = ("vectors.h", "attention.h", "linear.h", "experts.h", "layer.h", "threads.h")
_FLAGS: Final = (
    *("-std=c++17", "-O3", "-march=native", "-mprefer-vector-width=512", "-fno-exceptions"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-rtti", "-fopenmp", "-fPIC", "-shared"),
)
_SHARE: Final = 256  # minimum tokens of a split
_TOGETHER: Final = 16  # queries of rows that are computed together, see `attention.h`
_NAMES: Final = {torch.float32: "float32", torch.bfloat16: "bfloat16"}  # of dtypes in the library


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
    """`Linear`: the addresses of a layer's parameters, and its numbers of inputs and outputs."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_int64) for name in ("in_", "out")),
    ]

    @classmethod
    def of(cls, linear: nn.Linear) -> LinearFacts:
        """Describe a layer, whose parameters must stay where they are."""
        bias = None if linear.bias is None else linear.bias.data_ptr()
        return cls(linear.weight.data_ptr(), bias, linear.in_features, linear.out_features)

    def part(self, begin: int, num: int, dtype: torch.dtype) -> LinearFacts:
        """Return the layer of `num` of the outputs, from output `begin` on; `dtype` is that of its parameters."""
        bias = None if self.bias is None else self.bias + dtype.itemsize * begin
        weight = self.weight + dtype.itemsize * begin * self.in_
        return LinearFacts(weight, bias, self.in_, num)


class Functions(NamedTuple):
    """The library's functions for one dtype, declared; `most_rows` of a step go through layers in one call."""

    write: Callable[..., None]
    attend: Callable[..., None]
    decode_scratch: Callable[..., int]
    decode_layers: Callable[..., None]
    multiply_linear: Callable[..., None]
    spread_threads: Callable[[int], None]
    most_rows: int


def cache_folder() -> Path:
    """Return the folder that keeps compiled kernels between starts."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "torchserve-stateful")


def load_library(cache: Path) -> ctypes.CDLL | None:
    """Return the library, built into the folder `cache` if it is missing or untrusted; None if no compiler can build it."""
    names = (os.environ.get("CXX", "c++"), "g++", "clang++")
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        return None
    sources = [_SOURCE.with_name(name).read_bytes() for name in (_SOURCE.name, *_HEADERS)]
    parts = [*sources, " ".join(_FLAGS).encode(), compiler.encode(), _processor()]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    command = [str(Path(compiler).absolute()), *_FLAGS, str(_SOURCE.absolute())]
    try:
        return load_or_compile(cache, f"cpu_kernels-{key}.so", command)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("compiled CPU kernels are not available: %s", error)
        return None


def is_worthwhile(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True where compiled layers were measured to be faster: on a CPU with AVX2 or AVX-512."""
    capability = torch.backends.cpu.get_cpu_capability()
    return device.type == "cpu" and dtype in _NAMES and capability in {"AVX2", "AVX512"}


def vector_width(dtype: torch.dtype) -> int:
    """Return the numbers in a vector; the inputs of a layer are a multiple of it."""
    return 4 * LANES // dtype.itemsize


def _processor() -> bytes:
    """Return what the compiler depends on, because a cache folder may move to another machine."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
    except OSError:
        return platform.processor().encode()
    fields = ("model name", "flags", "Features")
    return "\n".join(line for line in first.splitlines() if line.startswith(fields)).encode()


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
def functions_for(library: ctypes.CDLL, dtype: torch.dtype) -> Functions:
    """Return the library's functions for weights and states of a dtype: float32 or bfloat16."""
    word, address = ctypes.c_int64, ctypes.c_void_p

    def declared(name: str, result: type[ctypes.c_int64] | None, *arguments: Any) -> Any:
        function = getattr(library, f"{name}_{_NAMES[dtype]}")
        function.restype, function.argtypes = result, arguments
        return function

    library.most_rows.restype = word
    library.spread_threads.restype, library.spread_threads.argtypes = None, [word]
    return Functions(
        write=declared("write", None, *(address, address), *(word,) * 4, ctypes.c_int),
        attend=declared(
            "attend", None, *(address,) * 3, word, word, address, word, address, address
        ),
        decode_scratch=declared("decode_scratch", word, address, word, word, word),
        decode_layers=declared(
            "decode_layers",
            None,
            *(address, address, word, address, address, address, word, word, address, address),
        ),
        multiply_linear=declared(
            "multiply_linear", None, *(address, address, word, word, address, address)
        ),
        most_rows=library.most_rows(),
        spread_threads=library.spread_threads,
    )
