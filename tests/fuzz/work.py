"""The work of a call: its calls of functions and its memory, and the bound of both for the size of an input."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

__all__ = ["TooMuchWork", "bounded"]

_T = TypeVar("_T")

# About twice as much as the costliest input takes that is within all limits; without bounds they are exceeded soon.
_CALLS, _CALLS_PER_BYTE = 1_500_000, 1
_PEAK_BYTES, _PEAK_PER_BYTE = 24_000_000, 12


class TooMuchWork(AssertionError):
    """A call has cost more than its input may."""


def bounded(size: int, call: Callable[[], _T]) -> _T:
    """Return what the call returns.

    The bounds are calls and bytes, not seconds, so they are the same on any machine.

    Raises:
        TooMuchWork: it returned or raised after more work than an input of `size` bytes may cost.
    """
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event.endswith("call")

    gc.collect(0)
    tracemalloc.start()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        return call()
    finally:
        sys.setprofile(before)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        _check("calls", calls, _CALLS + _CALLS_PER_BYTE * size, size)
        _check("bytes of memory", peak_bytes, _PEAK_BYTES + _PEAK_PER_BYTE * size, size)


def _check(name: str, used: int, bound: int, size: int) -> None:
    if used > bound:
        raise TooMuchWork(f"{size:,} bytes took {used:,} {name}, more than {bound:,}")
