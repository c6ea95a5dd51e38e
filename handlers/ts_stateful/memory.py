"""Memory of this process: what its allocator keeps, and when garbage is looked for."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator

__all__ = ["give_memory_back", "keep_freed_memory", "without_collections"]

# Of glibc's malloc.h, and the largest values that it takes by itself for a process that frees large blocks.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_BLOCK = 32 * 1024**2


def keep_freed_memory() -> None:
    """Let the allocator keep what a pass frees for the next one, until `give_memory_back`.

    Else it may return memory to the system with each pass, and a page of it is zeroed again at its first use in the next one.
    It is for passes that are all alike: blocks of many sizes, as of images, would leave it in pieces.
    """
    change = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if change is not None:
        change(_M_MMAP_THRESHOLD, _LARGEST_BLOCK)
        change(_M_TRIM_THRESHOLD, 2 * _LARGEST_BLOCK)


def give_memory_back() -> None:
    """Return memory to the system that finished work left in the allocator."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Look for no garbage meanwhile, nor later among what is left. For imports of large libraries, which leave hardly any.

    A collection that looks at half a million objects takes 0.2 seconds. In a process that forks, it would also write to memory
    that is shared.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
