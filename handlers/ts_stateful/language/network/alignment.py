"""Weights at addresses that a CPU reads fastest."""

from __future__ import annotations

import sys
from bisect import bisect
from itertools import chain
from typing import Final

import torch
from torch import nn

from ts_stateful.language.kernels.cpu.huge_pages import empty_copies, is_plain, own_memory

__all__ = ["align_weights"]

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
