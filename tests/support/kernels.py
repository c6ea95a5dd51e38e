"""The compiled kernels of language models, loaded once: each load keeps a folder open."""

from __future__ import annotations

import ctypes
from functools import cache

from ts_stateful.cpu_kernels.build import cache_folder, load_library

__all__ = ["language_kernels"]


@cache
def language_kernels() -> ctypes.CDLL:
    """Return the library; a test that calls this needs a C++ compiler."""
    library = load_library(cache_folder(), "language")
    assert library is not None
    return library
