"""Copies of small numbers from the host to a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["to_device"]


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
