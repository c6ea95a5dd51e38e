"""Weights where a CPU reads fastest: at cache lines, and in huge pages, as each page of 4 KB costs a step one look-up."""

from __future__ import annotations

import ctypes
import logging
import sys
import time
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

__all__ = ["align_weights", "empty_copies", "is_plain", "own_memory", "use_huge_pages"]

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


_LINE: Final = 64  # bytes of a cache line, and of the widest vector


def align_weights(network: nn.Module) -> int:
    """Copy the weights on a CPU that are in a file, or begin inside a cache line; return the number of bytes copied.

    Weights of a checkpoint are its file, mapped into memory, mostly at addresses that are multiples of 8. Of those, each vector
    of 64 bytes lies in two lines, and a file cannot be in huge pages. Ties stay, and so do quantised weights. The file is
    unmapped with its last weight.
    """
    try:
        own = list(own_memory())
    except OSError:
        own = []
    weights = [
        tensor
        for tensor in chain(network.parameters(), network.buffers())
        if is_plain(tensor) and (tensor.data_ptr() % _LINE or _is_in_file(tensor, own))
    ]
    copies = empty_copies(weights)  # torch's allocator aligns
    for tensor, copy in zip(weights, copies, strict=True):
        tensor.data = copy.copy_(tensor.data)
    return sum(tensor.nbytes for tensor in weights)


def _is_in_file(tensor: torch.Tensor, own: list[tuple[int, int]]) -> bool:
    if not own:
        return False  # as far as is known
    begin, end = own[bisect(own, (tensor.data_ptr(), sys.maxsize)) - 1]
    return not begin <= tensor.data_ptr() < end
