"""Weights in huge pages: a step reads all of them, and each page of 4 KB costs it a look-up of its address."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

__all__ = ["is_plain", "own_memory", "use_huge_pages"]

logger = logging.getLogger(__name__)

_SIZE: Final = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_MAPPINGS: Final = Path("/proc/self/maps")
_LEAST_BYTES: Final = 1 << 23  # fewer stay in a processor's caches
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # of madvise(2)


def use_huge_pages(tensors: Iterable[Tensor]) -> None:
    """Move the memory of plain tensors on the CPU into huge pages, as far as Linux can. Their addresses stay.

    Linux before 6.1 moves it in the course of minutes, where that is enabled. Memory of files stays as it is.
    """
    spans = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)
        for tensor in tensors
        if is_plain(tensor)
    )
    if sum(end - begin for begin, end in spans) < _LEAST_BYTES:
        return
    try:
        size = int(_SIZE.read_text(encoding="ascii"))
        ranges = list(_ranges(spans, size))
    except (OSError, ValueError):
        return  # another system, or Linux without huge pages
    madvise = ctypes.CDLL(None).madvise
    began_at, num_bytes = time.perf_counter(), 0
    for begin, end in ranges:
        where = ctypes.c_void_p(begin), ctypes.c_size_t(end - begin)
        madvise(*where, _MADV_HUGEPAGE)
        if not madvise(*where, _MADV_COLLAPSE):
            num_bytes += end - begin
    figures = num_bytes // 1_000_000, time.perf_counter() - began_at
    logger.info("%d MB of weights are in huge pages, after %.1f s", *figures)


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
