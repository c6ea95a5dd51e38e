"""The dtype in which a model computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

__all__ = ["choose_dtype", "has_bfloat16"]


def choose_dtype(
    wanted: Literal["auto", "float32", "bfloat16", "float16"],
    device: torch.device,
    stored: torch.dtype | str | None,
    *,
    bfloat16: bool,
) -> torch.dtype:
    """Return the dtype of weights and states on `device`.

    `stored` is the checkpoint's dtype. `bfloat16` is True if the processor computes with that in hardware. With "auto", a GPU
    gets bfloat16. A CPU gets float32, which holds every checkpoint exactly, unless both the processor and the checkpoint have
    bfloat16. Then half as many bytes are read for every token, and no weight is rounded.
    """
    if wanted != "auto":
        dtype: torch.dtype = getattr(torch, wanted)
        return dtype
    if device.type != "cpu" or (bfloat16 and stored in (torch.bfloat16, "bfloat16")):
        return torch.bfloat16
    return torch.float32


def has_bfloat16(capabilities: Mapping[str, Any]) -> bool:
    """Return True if a CPU of these capabilities (`torch.cpu.get_capabilities()`) multiplies bfloat16 in hardware.

    Without that, torch converts numbers back and forth, and is slower than with float32.
    """
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))
