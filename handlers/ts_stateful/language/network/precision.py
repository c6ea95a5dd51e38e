"""In which numbers a model computes.

Owns what `handler.dtype: auto` means: what the device computes fast, unless the weights would lose by it on a CPU. Knows
nothing of models but the numbers that their checkpoints hold.
"""

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
    """The dtype of weights and states on `device`.

    `stored` is what the checkpoint says that it holds, and `bfloat16` whether the processor computes with that in hardware.
    A GPU gets bfloat16. A CPU gets float32, which holds every checkpoint as it is, but bfloat16 where the processor and the
    checkpoint both have it: then half as many bytes are read for every token, and no weight is rounded.
    """
    if wanted != "auto":
        dtype: torch.dtype = getattr(torch, wanted)
        return dtype
    if device.type != "cpu" or (bfloat16 and stored in (torch.bfloat16, "bfloat16")):
        return torch.bfloat16
    return torch.float32


def has_bfloat16(capabilities: Mapping[str, Any]) -> bool:
    """Whether a CPU of these capabilities (`torch.cpu.get_capabilities()`) multiplies bfloat16 in hardware.

    Without, torch converts numbers back and forth, and is slower with them than with float32.
    """
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))
