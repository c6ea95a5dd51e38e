"""Memory of this process that its allocator keeps."""

from __future__ import annotations

import ctypes

__all__ = ["give_memory_back"]


def give_memory_back() -> None:
    """Return memory to the system that finished work left in the allocator."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)
