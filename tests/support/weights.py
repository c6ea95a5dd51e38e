"""Files of weights."""

from __future__ import annotations

__all__ = ["NO_WEIGHTS", "PART"]

NO_WEIGHTS = b"\2\0\0\0\0\0\0\0{}"  # safetensors without a tensor
_HEADER = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
PART = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(4)  # the half of a tensor
