"""The attention of single tokens of many sessions, and the writing of their states, as compiled kernels for CPUs.

torch's own attention computes one session's token at a time, at a third of the memory's speed; `cpu_kernels.cpp` computes those
of all sessions in one call and reads their states as fast as memory gives them. It is compiled where it runs, for the
processor it runs on, when it is first needed, and kept in the user's cache folder. Without a compiler there are no kernels.

Owns how the kernels are built, found and called. Threads are those of torch: both use the one OpenMP runtime of the process.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from ts_stateful.engine.attention import Rule
from ts_stateful.engine.kv import KVLayout
from ts_stateful.engine.spans import Table

__all__ = ["CpuKernels", "cache_folder", "compiled"]

logger = logging.getLogger(__name__)

_SOURCE: Final = Path(__file__).with_suffix(".cpp")
_FLAGS: Final = (
    *("-std=c++17", "-O3", "-march=native", "-mprefer-vector-width=512", "-fno-exceptions"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-rtti", "-fopenmp", "-fPIC", "-shared"),
)
_COMPILE_S: Final = 120
_LANES: Final = 16  # dimensions are multiples of it, and at most `_WIDEST`
_WIDEST: Final = 1024
_SHARE: Final = 256  # tokens of a split at least
_DTYPES: Final = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class _Step(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("table", "num_tokens", "num_rows", "num_spans", "layer", "window")
    ]


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("heads", "group", "key_dim", "value_dim")),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    ]


def cache_folder() -> Path:
    """Where what was compiled is kept from one start to the next."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "torchserve-stateful")


def compiled(cache: Path) -> ctypes.CDLL | None:
    """The library, built into the folder `cache` if it is not there yet; None where there is no compiler that can build it."""
    names = (os.environ.get("CXX", "c++"), "g++", "clang++")
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        return None
    source = _SOURCE.read_bytes()
    parts = [source, " ".join(_FLAGS).encode(), compiler.encode(), _processor()]
    key = hashlib.sha256(b"\0".join(parts))
    library = cache / f"cpu_kernels-{key.hexdigest()[:16]}.so"
    try:
        if not library.exists():
            cache.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                built = Path(folder, library.name)
                command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(built)]
                logger.info("compiling kernels for this processor")
                subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_S)
                built.replace(library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("there are no compiled kernels: %s", error)
        return None


def _processor() -> bytes:
    """What the compiler makes use of: a cache folder may be carried from one machine to another."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
    except OSError:
        return platform.processor().encode()
    told = ("model name", "flags", "Features")
    return "\n".join(line for line in first.splitlines() if line.startswith(told)).encode()


class CpuKernels:
    """Implements `attention.Kernels` for one model."""

    def __init__(self, layout: KVLayout, library: ctypes.CDLL) -> None:
        self._layers = layout.layers
        name = _DTYPES[layout.dtype]
        self._write = getattr(library, f"write_{name}")
        self._attend = getattr(library, f"attend_{name}")
        word, address = ctypes.c_int64, ctypes.c_void_p
        self._write.argtypes = [address, address, word, word, word, word, ctypes.c_int]
        self._attend.argtypes = [
            address,
            address,
            address,
            word,
            word,
            address,
            word,
            address,
            address,
        ]
        self._write.restype = self._attend.restype = None
        self._step = _Step()
        self._layer = _Layer()

    @staticmethod
    def serves(layout: KVLayout) -> bool:
        """Whether they can compute with states like these."""
        dims = [dim for shape in layout.layers for dim in (shape.key_dim, shape.value_dim)]
        return layout.dtype in _DTYPES and all(d % _LANES == 0 and d <= _WIDEST for d in dims)

    def write(self, keys: Tensor, values: Tensor, table: Table, layer: int) -> None:
        """Stores the new tokens' keys and values, `(heads, tokens, dim)`, in the states of their sessions."""
        step = self._at(table, layer, None)
        for which, states in enumerate((_dense(keys), _dense(values))):
            heads, _, dim = states.shape
            self._write(step, states.data_ptr(), *states.stride()[:2], heads, dim, which)

    def attend(
        self, query: Tensor, table: Table, layer: int, rule: Rule, window: int | None
    ) -> Tensor:
        """Attention of the rows among the queries `(heads, tokens, dim)`.

        Returns `(tokens, heads, value_dim)`, of which the other tokens are not set.
        """
        query = _dense(query)
        num_heads, num_tokens, _ = query.shape
        shape = self._layers[layer]
        output = query.new_empty(num_tokens, num_heads, shape.value_dim)
        if not table.num_rows:
            return output
        splits = self._num_splits(table, shape.heads)
        partial = torch.empty(table.num_rows * num_heads * splits * (shape.value_dim + 2))
        facts = self._layer
        facts.heads, facts.group = shape.heads, num_heads // shape.heads
        facts.key_dim, facts.value_dim = shape.key_dim, shape.value_dim
        facts.scale = shape.key_dim**-0.5 if rule.scale is None else rule.scale
        facts.softcap = rule.softcap or 0.0
        sinks = None if rule.sinks is None else rule.sinks.float()
        self._attend(
            self._at(table, layer, window),
            ctypes.byref(facts),
            query.data_ptr(),
            *query.stride()[:2],
            None if sinks is None else sinks.data_ptr(),
            splits,
            partial.data_ptr(),
            output.data_ptr(),
        )
        return output

    def _at(self, table: Table, layer: int, window: int | None) -> object:
        step = self._step
        step.table, step.num_tokens = table.buffer.data_ptr(), table.num_tokens
        step.num_rows, step.num_spans = table.num_rows, table.num_spans
        step.layer, step.window = layer, window or 0
        return ctypes.byref(step)

    def _num_splits(self, table: Table, heads: int) -> int:
        """Splits of a row's head, so that all threads have work."""
        wanted = -(-2 * torch.get_num_threads() // (table.num_rows * heads))
        longest = (
            int(table.buffer[table.num_tokens : 2 * table.num_tokens].max()) + 1
            if wanted > 1
            else 1
        )
        return max(1, min(wanted, longest // _SHARE))


def _dense(states: Tensor) -> Tensor:
    """With its last dimension in one piece, which the kernels count on."""
    return states if states.stride(-1) == 1 else states.contiguous()
