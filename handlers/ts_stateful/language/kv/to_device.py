"""Small numbers on their way from the host to a device.

Owns that nobody waits for them: `torch.tensor(..., device="cuda")` returns when the device has done all that came before, and
costs a decode step the time in which the next kernels could have been launched. Knows nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["to_device"]


def to_device(
    values: Sequence[int] | Sequence[float] | Tensor,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """A tensor of these numbers on `device`, for operations that are queued behind it."""
    host = torch.as_tensor(values, dtype=dtype)
    if device.type != "cuda" or host.device.type != "cpu":
        return host.to(device)
    # Torch keeps the pinned memory until the copy is done.
    return host.pin_memory().to(device, non_blocking=True)
