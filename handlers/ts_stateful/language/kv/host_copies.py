"""Copies of small numbers between a device and the host that wait for no more than they must."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["HostCopy", "to_device"]


def to_device(values: Sequence[int] | Sequence[float] | Tensor, device: torch.device) -> Tensor:
    """Return a tensor of these numbers on `device`, for operations queued after it.

    Does not wait for the copy. `torch.tensor(..., device="cuda")` returns only after all earlier work on the device, and a
    decode step would lose that time for launching its next kernels.
    """
    host = torch.as_tensor(values)
    if device.type != "cuda" or host.device.type != "cpu":
        return host.to(device)
    # Torch keeps the pinned memory until the copy is done. It does not pin a view that repeats numbers.
    return host.contiguous().pin_memory().to(device, non_blocking=True)


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
