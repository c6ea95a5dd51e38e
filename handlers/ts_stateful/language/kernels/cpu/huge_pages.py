"""Weights in huge pages: a step reads all of them, and each page of 4 KB costs it a look-up of its address."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

__all__ = ["empty_copies", "is_plain", "own_memory", "use_huge_pages"]

logger = logging.getLogger(__name__)

_SIZE: Final = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_MAPPINGS: Final = Path("/proc/self/maps")
_LEAST_BYTES: Final = 1 << 23  # fewer stay in a processor's caches
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # of madvise(2)


def empty_copies(tensors: Iterable[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """Return unwritten tensors of the same shapes, for which Linux will take huge pages as they are written.

    Memory that was written before is moved in ten times the time (`use_huge_pages`).
    """
    copies = [torch.empty(tensor.shape, dtype=dtype or tensor.dtype) for tensor in tensors]
    madvise = ctypes.CDLL(None).madvise
    for begin, num_bytes in _whole_pages(copies):
        madvise(begin, num_bytes, _MADV_HUGEPAGE)
    return copies


def use_huge_pages(tensors: Iterable[Tensor]) -> None:
    """Move the memory of plain tensors on the CPU into huge pages, as far as Linux can. Their addresses stay.

    Linux before 6.1 moves it in the course of minutes, where that is enabled. Memory of files stays as it is.
    """
    madvise = ctypes.CDLL(None).madvise
    began_at, moved = time.perf_counter(), 0
    for begin, num_bytes in _whole_pages([tensor for tensor in tensors if is_plain(tensor)]):
        madvise(begin, num_bytes, _MADV_HUGEPAGE)
        if not madvise(begin, num_bytes, _MADV_COLLAPSE):
            moved += num_bytes.value
    if moved:
        figures = moved // 1_000_000, time.perf_counter() - began_at
        logger.info("%d MB of weights are in huge pages, after %.1f s", *figures)


def _whole_pages(tensors: Sequence[Tensor]) -> list[tuple[ctypes.c_void_p, ctypes.c_size_t]]:
    """Return addresses and sizes of the huge pages that hold these; none on another system, or Linux without any.

    To read where memory is mapped takes a millisecond, so it is not done for few bytes.
    """
    if sum(tensor.nbytes for tensor in tensors) < _LEAST_BYTES:
        return []
    spans = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors)
    try:
        ranges = list(_ranges(spans, int(_SIZE.read_text(encoding="ascii"))))
    except (OSError, ValueError):
        return []
    return [(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin)) for begin, end in ranges]


def is_plain(tensor: Tensor) -> bool:
    """Return True for numbers that lie in the host's memory one after the other, neither packed nor quantised."""
    return (
        type(tensor) in (nn.Parameter, Tensor)
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
    )


def _ranges(spans: Iterable[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of whole huge pages that hold sorted spans, each in one mapping; what lies between spans is little."""
    joined: list[list[int]] = []
    for begin, end in spans:
        if joined and begin < joined[-1][1] + size:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    for first, stop in own_memory():
        for begin, end in joined:
            low = max(begin // size, -(-first // size))
            high = min(-(-end // size), stop // size)
            if low < high:
                yield low * size, high * size


def own_memory() -> Iterator[tuple[int, int]]:
    """Yield the first address and the end of this process's writable mappings of no file, upwards.

    Raises:
        OSError: another system than Linux.
    """
    for line in _MAPPINGS.read_text(encoding="utf-8", errors="replace").splitlines():
        addresses, mode, _, _, file = line.split(maxsplit=5)[:5]
        if mode == "rw-p" and file == "0":
            begin, end = addresses.split("-")
            yield int(begin, 16), int(end, 16)
