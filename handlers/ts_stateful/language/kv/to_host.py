"""Copies of small numbers from a device to the host, without waiting for what is queued after them."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

__all__ = ["HostCopy"]


class HostCopy:
    """Integers `(n,)` on their way to the host.

    `Tensor.tolist` waits for all work that is queued when it is called. This waits for what was queued when it was made.
    """

    def __init__(self, numbers: Tensor) -> None:
        self._numbers, self._arrival = numbers, None
        if numbers.device.type == "cuda":
            self._numbers = torch.empty_like(numbers, device="cpu", pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._arrival = torch.cuda.Event()
            self._arrival.record(torch.cuda.current_stream(numbers.device))

    @cached_property
    def values(self) -> list[int]:
        """The numbers; waits for them the first time."""
        if self._arrival is not None:
            self._arrival.synchronize()
        values: list[int] = self._numbers.tolist()
        return values
