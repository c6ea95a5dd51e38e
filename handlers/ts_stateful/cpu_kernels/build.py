"""The build of the compiled libraries of CPU kernels.

Their threads are torch's: all use the process's one OpenMP runtime.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final, Literal

import torch

from ts_stateful.cpu_kernels.cache import load_or_compile

__all__ = ["cache_folder", "is_worthwhile", "load_library"]

logger = logging.getLogger(__name__)

_SOURCES: Final = Path(__file__).parent / "src"
_FLAGS: Final = (
    *("-std=c++17", "-O3", "-march=native", "-mprefer-vector-width=512", "-fno-exceptions"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-rtti", "-fopenmp", "-fPIC", "-shared"),
)
_FIRST_CACHE: Final = Path("/sys/devices/system/cpu/cpu0/cache/index0/size")
_DTYPES: Final = (torch.float32, torch.bfloat16)


def cache_folder() -> Path:
    """Return the folder that keeps compiled kernels between starts; a temporary one for a user without a home."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        base = tempfile.gettempdir()
    return Path(base, "torchserve-stateful")


def load_library(cache: Path, name: Literal["language", "recurrent"]) -> ctypes.CDLL | None:
    """Return a library, built into the folder `cache` if it is missing or untrusted; None if no compiler can build it."""
    names = (os.environ.get("CXX", "c++"), "g++", "clang++")
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        _warn_once("no C++ compiler: passes on a CPU are slower; install g++, or name one in CXX")
        return None
    sources = [file.read_bytes() for file in sorted(_SOURCES.iterdir())]
    flags = [*_FLAGS, f"-DFIRST_CACHE={_first_cache()}"]
    parts = [*sources, " ".join(flags).encode(), compiler.encode(), _processor()]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    source = Path(_SOURCES, f"{name}.cpp")
    command = (str(Path(compiler).absolute()), *flags, str(source.absolute()))
    return _load(cache, f"cpu_{name}-{key}.so", command)


@functools.cache
def _warn_once(text: str) -> None:
    logger.warning(text)


@functools.cache  # where no folder can keep a library, each call would compile it again
def _load(cache: Path, name: str, command: tuple[str, ...]) -> ctypes.CDLL | None:
    try:
        return load_or_compile(cache, name, command)
    except (OSError, subprocess.SubprocessError) as error:
        remedy = f"; if {cache} is mounted noexec, name a folder in XDG_CACHE_HOME that is not"
        remedy = remedy if "failed to map segment" in str(error) else ""
        logger.warning("compiled CPU kernels are not available (%s): %s%s", name, error, remedy)
        return None


def is_worthwhile(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True where compiled layers were measured to be faster: on a CPU with AVX2 or AVX-512."""
    capability = torch.backends.cpu.get_cpu_capability()
    return device.type == "cpu" and dtype in _DTYPES and capability in {"AVX2", "AVX512"}


def _first_cache() -> int:
    """Return the KiB of data in a processor's fastest cache; 0: unknown."""
    try:
        return int(_FIRST_CACHE.read_text(encoding="utf-8").strip().removesuffix("K"))
    except (OSError, ValueError):
        return 0


def _processor() -> bytes:
    """Return what the compiler depends on, because a cache folder may move to another machine."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
    except OSError:
        return platform.processor().encode()
    fields = ("model name", "flags", "Features")
    return "\n".join(line for line in first.splitlines() if line.startswith(fields)).encode()
