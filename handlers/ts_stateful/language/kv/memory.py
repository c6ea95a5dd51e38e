"""Memory for KV states."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

__all__ = ["Memory"]


class Memory:
    """`num_elements` of uninitialised memory; `tensor` is all of it, in one dimension.

    On a CPU it is address space, which the kernel backs page by page when it is written. So states grow in place without a
    copy, and spare capacity costs nothing. Elsewhere the device's allocator provides it.

    Raises:
        torch.OutOfMemoryError, MemoryError: there is not enough.
    """

    __slots__ = ("_map", "tensor")

    def __init__(
        self, num_elements: int, dtype: torch.dtype, device: torch.device, pin: bool = False
    ) -> None:
        self._map: mmap.mmap | None = None
        if device.type != "cpu" or pin:  # where no elements take no memory
            self.tensor: Tensor = torch.empty(
                num_elements, dtype=dtype, device=device, pin_memory=pin
            )
            return
        # NORESERVE: pages that are never written must not count where the kernel limits overcommitment.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        try:
            self._map = mmap.mmap(-1, max(1, num_elements) * dtype.itemsize, flags=flags)
        except OSError as error:
            raise MemoryError(f"cannot allocate KV states: {error.strerror}") from error
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            self._map.madvise(mmap.MADV_NOHUGEPAGE)  # one written token would back 2 MB a head
        self.tensor = torch.frombuffer(self._map, dtype=dtype)

    @property
    def lazy(self) -> bool:
        """True if only written pages take memory."""
        return self._map is not None

    def discard(self, start: int, stop: int) -> None:
        """Return the pages that lie entirely between two elements to the kernel; their content is lost."""
        if self._map is None:
            return
        size, page = self.tensor.element_size(), mmap.PAGESIZE
        first, last = -(-start * size // page) * page, stop * size // page * page
        if first < last and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
