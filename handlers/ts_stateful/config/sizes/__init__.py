"""What a session takes: the arithmetic of bytes, without torch.

Owns how many bytes a token of a language model and the states of a sequence take, from what their files declare. Knows nothing
of devices, of profiles or of what is done about it.
"""

from ts_stateful.config.sizes.quantities import parse_bytes, show_bytes, show_count
from ts_stateful.config.sizes.states import StatesSize
from ts_stateful.config.sizes.transformer import (
    DTYPE_BYTES,
    ModelUnknown,
    TransformerSize,
    read_transformer,
)

__all__ = [
    "DTYPE_BYTES",
    "ModelUnknown",
    "StatesSize",
    "TransformerSize",
    "parse_bytes",
    "read_transformer",
    "show_bytes",
    "show_count",
]
