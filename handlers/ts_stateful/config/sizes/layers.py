"""Which layers keep keys and values of every token, and which keep recurrent states of a fixed size."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ts_stateful.config.sizes.numbers import DTYPE_BYTES, Numbers

__all__ = [
    "NO_FIXED",
    "STATE_SETS",
    "FixedSize",
    "find_fixed",
    "has_recurrent_layers",
    "num_attentive",
    "num_beside",
]

STATE_SETS = 6  # that a session keeps at most: its last ones, those of a step's beginning, and four to go back to
_RECURRENT = {"linear_attention", "conv", "mamba", "mamba2", "recurrent", "M"}
_WITHOUT_KV = {*_RECURRENT, "mlp", "moe", "-", "E"}
_KINDS = ("layer_types", "layers_block_type", "hybrid_override_pattern")  # the last one is a text
_ONLY_RECURRENT = {"mamba", "mamba2", "falcon_mamba"}
_BOTH = {"falcon_h1"}  # attention and a recurrent part in every layer
_RECURRENT_BYTES = 4  # stock code keeps these states in float32, convolutions in the model's dtype


class FixedSize(NamedTuple):
    """Recurrent states: `layers`, and the numbers of each one's `convolution` and `recurrent` states."""

    layers: int = 0
    convolution: int = 0
    recurrent: int = 0

    def num_bytes(self, dtype: str) -> int:
        """Return the bytes that a session takes at most."""
        each = self.convolution * DTYPE_BYTES[dtype] + self.recurrent * _RECURRENT_BYTES
        return STATE_SETS * self.layers * each


NO_FIXED = FixedSize()


class _Layers(NamedTuple):
    attentive: int
    recurrent: int


def num_attentive(sizes: Numbers) -> int:
    """Return the number of layers that keep keys and values."""
    # Some of the last layers may use the keys and values of earlier ones.
    shared = sizes.number("num_kv_shared_layers") or 0
    return _layers(sizes).attentive - shared - num_beside(sizes)


def num_beside(sizes: Numbers) -> int:
    """Return the number of layers that attend to images beside the text, and keep nothing of it."""
    beside = sizes.text.get("cross_attention_layers")
    return len(beside) if isinstance(beside, list) else 0


def has_recurrent_layers(sizes: Numbers) -> bool:
    """Return True if some layers keep recurrent states; False also if the number of layers is unknown."""
    return sizes.find("layers") is not None and _layers(sizes).recurrent > 0


def find_fixed(sizes: Numbers) -> FixedSize:
    """Return the size of the recurrent states, as stock code of the family shapes them."""
    layers = _layers(sizes).recurrent
    if not layers:
        return NO_FIXED
    width = sizes.number("conv_L_cache")
    if width is not None:  # LFM2: convolutions alone
        return FixedSize(layers, sizes.known("hidden") * width)
    for numbers in (_delta_rule, _mamba2, _mamba1):
        found = numbers(sizes)
        if found is not None:
            return FixedSize(layers, *found)
    return NO_FIXED


def _layers(sizes: Numbers) -> _Layers:
    kinds = next((sizes.text[key] for key in _KINDS if sizes.text.get(key)), None)
    if isinstance(kinds, list | str):
        found = Counter(kinds)
        others = sum(found[name] for name in _WITHOUT_KV)
        return _Layers(max(1, len(kinds) - others), sum(found[name] for name in _RECURRENT))
    count, kind = sizes.known("layers"), sizes.text.get("model_type")
    if kind in _ONLY_RECURRENT:
        return _Layers(0, count)
    if kind in _BOTH:
        return _Layers(count, count)
    listed = sizes.text.get("attn_layer_indices") or sizes.text.get("full_attn_idxs")
    period = sizes.first("attn_layer_period", "full_attention_interval")
    if isinstance(listed, list):
        attentive = len(listed)
    elif period is not None:
        attentive = count // period
    else:
        attentive = count
    return _Layers(max(1, attentive), count - attentive)


def _delta_rule(sizes: Numbers) -> tuple[int, int] | None:
    """Qwen3-Next, Qwen3.5, OLMo hybrid and Kimi Linear: a matrix for each head, convolutions of queries, keys and values."""
    width = sizes.number("linear_conv_kernel_dim")
    heads = sizes.first("linear_num_value_heads", "linear_num_heads")
    key_dim = sizes.first("linear_key_head_dim", "linear_head_dim")
    value_dim = sizes.first("linear_value_head_dim", "linear_head_dim")
    if width is None or heads is None or key_dim is None or value_dim is None:
        return None
    key_heads = sizes.number("linear_num_key_heads") or heads
    inputs = 2 * key_heads * key_dim + heads * value_dim
    return inputs * width, heads * key_dim * value_dim


def _mamba2(sizes: Numbers) -> tuple[int, int] | None:
    """Mamba 2: a matrix for each head, and a convolution of its inputs and of two vectors of each group."""
    heads = sizes.first("mamba_n_heads", "mamba_num_heads", "num_heads")
    dim = sizes.first("mamba_d_head", "mamba_head_dim", "head_dim")
    groups = sizes.first("mamba_n_groups", "n_groups")
    if heads is None or dim is None or groups is None:
        return None
    state, width = _state_and_width(sizes)
    return (heads * dim + 2 * groups * state) * width, heads * dim * state


def _mamba1(sizes: Numbers) -> tuple[int, int] | None:
    """Mamba 1: a vector for each number of its inner width, and a convolution of those."""
    expand = sizes.first("mamba_expand", "expand")
    if expand is None:
        return None
    state, width = _state_and_width(sizes)
    inner = expand * sizes.known("hidden")
    return inner * width, inner * state


def _state_and_width(sizes: Numbers) -> tuple[int, int]:
    state = sizes.first("mamba_d_state", "ssm_state_size", "state_size")
    return state or 0, sizes.first("mamba_d_conv", "conv_kernel") or 0
