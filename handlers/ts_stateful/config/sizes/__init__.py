"""The bytes of a language model's token and of a sequence's states, computed from their files without torch."""

from ts_stateful.config.sizes.numbers import DTYPE_BYTES, ModelUnknown
from ts_stateful.config.sizes.quantities import parse_bytes, show_bytes
from ts_stateful.config.sizes.states import StatesSize
from ts_stateful.config.sizes.transformer import TransformerSize, read_transformer

__all__ = [
    "DTYPE_BYTES",
    "ModelUnknown",
    "StatesSize",
    "TransformerSize",
    "parse_bytes",
    "read_transformer",
    "show_bytes",
]
