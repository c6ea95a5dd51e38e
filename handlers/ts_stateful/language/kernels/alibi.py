"""Models whose attention has biases by distance (ALiBi, arXiv:2108.12409) and computes them for one session.

Their modules take the states of many sessions here. Everything else goes to stock code, and stock code makes the biases, which
differ in where they count from and how they are rounded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ts_stateful.language.kernels.rule import Bias, Rule
from ts_stateful.language.kernels.states import States

__all__ = ["exchange_biased"]

_FLAT_DIMS = 4  # of a mask that only says that there is none


class _Made:
    """The biases of one model, made for as many keys as were needed so far."""

    def __init__(self, attention: Any) -> None:
        self._attention = attention
        self._made: Tensor | None = None

    def of(self, num_keys: int) -> Tensor:
        """Return the biases of so many keys, `(heads, 1, num_keys)`."""
        if self._made is None or self._made.shape[-1] < num_keys:
            self._made = self._make(1 << num_keys.bit_length())
        return self._cut(self._made, num_keys)

    def _make(self, num_keys: int) -> Tensor:
        mask = torch.ones(1, num_keys, dtype=torch.long, device=_weight(self._attention).device)
        build = _stock(self._attention).build_alibi_tensor
        made: Tensor = build(mask, self._attention.num_heads, _weight(self._attention).dtype)
        return made

    def _cut(self, made: Tensor, num_keys: int) -> Tensor:
        return made[..., :num_keys]


class _FalconMade(_Made):
    def _make(self, num_keys: int) -> Tensor:
        return super()._make(num_keys) / math.sqrt(self._attention.head_dim)


class _MptMade(_Made):
    """Biases that count back from the last key."""

    def _make(self, num_keys: int) -> Tensor:
        device = _weight(self._attention).device
        build = _stock(self._attention).build_mpt_alibi_tensor
        made: Tensor = build(self._attention.n_heads, num_keys, device=device)
        return made

    def _cut(self, made: Tensor, num_keys: int) -> Tensor:
        return made[..., -num_keys:]


def exchange_biased(network: nn.Module) -> None:
    """Let these models' modules take the states of many sessions."""
    made: dict[str, Bias] = {}
    for module in network.modules():
        attention: Any = module
        name = type(attention).__name__
        if name == "BloomModel":
            attention.build_alibi_tensor = partial(_unless_flat, attention)
        elif name == "FalconModel" and attention.config.alibi:
            attention.register_forward_pre_hook(_without_biases, with_kwargs=True)
        elif name in _KINDS and (name != "FalconAttention" or attention.config.alibi):
            forward, biases = _KINDS[name]
            bias = made.setdefault(name, biases(attention))
            attention.forward = partial(forward, attention, bias)


def _bloom(attention: Any, bias: Bias, hidden: Tensor, residual: Tensor, **kwargs: Any) -> Any:
    cache = kwargs["layer_past"]
    if not _is_flat(cache):
        return type(attention).forward(attention, hidden, residual, **kwargs)
    parts = attention._reshape(attention.query_key_value(hidden))
    output = _attended(attention, cache, bias, parts, attention.inv_norm_factor)
    return residual + attention.dense(output), None


def _mpt(attention: Any, bias: Bias, hidden: Tensor, **kwargs: Any) -> Any:
    cache = kwargs["cache" if "cache" in kwargs else "past_key_values"]
    if not _is_flat(cache):
        return type(attention).forward(attention, hidden, **kwargs)
    mixed = attention.Wqkv(hidden)
    if attention.clip_qkv:
        mixed = mixed.clamp(min=-attention.clip_qkv, max=attention.clip_qkv)
    shape = (1, -1, attention.n_heads, attention.head_dim)
    parts = [part.reshape(shape).transpose(1, 2) for part in mixed.chunk(3, dim=2)]
    output = _attended(attention, cache, bias, parts, attention.softmax_scale)
    return attention.out_proj(output), None


def _falcon(attention: Any, bias: Bias, hidden: Tensor, **kwargs: Any) -> Any:
    cache = kwargs["layer_past"]
    if not _is_flat(cache):
        return type(attention).forward(attention, hidden, **kwargs)
    split = attention._split_heads(attention.query_key_value(hidden))
    parts = [part.transpose(1, 2) for part in split]
    output = _attended(attention, cache, bias, parts, attention.inv_norm_factor)
    return attention.dense(output), None


def _is_flat(cache: Any) -> bool:
    return getattr(cache, "states", None) is not None


def _attended(attention: Any, cache: Any, bias: Bias, parts: Any, scale: float) -> Tensor:
    """Return the attention of queries, keys and values `(1, heads, tokens, dim)` as `(1, tokens, heads x dim)`."""
    query, key, value = parts
    states: States = cache.update(key, value, attention.layer_idx)[0]
    return states.attend(query, Rule(scale, bias=bias), None).flatten(2)


def _unless_flat(model: Any, mask: Tensor, num_heads: int, dtype: torch.dtype) -> Tensor:
    """Make BLOOM's biases, but none for a step of many sessions, whose mask has more dimensions."""
    if mask.dim() == _FLAT_DIMS:
        return mask
    made: Tensor = type(model).build_alibi_tensor(model, mask, num_heads, dtype)
    return made


def _without_biases(model: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Let Falcon make no biases for a step of many sessions."""
    mask = kwargs.get("attention_mask")
    model.use_alibi = mask is None or mask.dim() != _FLAT_DIMS


def _stock(attention: nn.Module) -> Any:
    """Return the library's module that has the class of an attention."""
    return sys.modules[type(attention).__module__]


def _weight(attention: nn.Module) -> Tensor:
    return next(attention.parameters())


_KINDS: dict[str, tuple[Callable[..., Any], type[_Made]]] = {
    "BloomAttention": (_bloom, _Made),
    "MptAttention": (_mpt, _MptMade),
    "FalconAttention": (_falcon, _FalconMade),
}
