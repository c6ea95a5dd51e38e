"""Models that compute their attention by a method of their own instead of the library's interface."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from ts_stateful.language.kernels.rule import Rule
from ts_stateful.language.kernels.states import States

__all__ = ["exchange_methods", "own_windows"]

_WITH_METHOD = ("CodeGenAttention", "GPTJAttention")  # before transformers 5.24


def exchange_methods(network: nn.Module) -> None:
    """Let these models' methods take the states of many sessions; tensors go to stock code as before."""
    for module in network.modules():
        attention: Any = module
        name = type(attention).__name__
        if name in _WITH_METHOD and hasattr(attention, "_attn"):
            attention._attn = partial(_attend, attention, Rule(1 / attention.scale_attn), None)
        elif name == "GPTNeoSelfAttention":
            window = _window(attention.config, attention.attention_type)
            attention._attn = partial(_attend, attention, Rule(1.0), window)


def own_windows(config: Any) -> list[int | None] | None:
    """Return the windows of a configuration of GPT-Neo, which the library does not know; None for others."""
    kinds = getattr(config, "attention_layers", None)
    return None if kinds is None else [_window(config, kind) for kind in kinds]


def _window(config: Any, kind: str) -> int | None:
    return int(config.window_size) if kind == "local" else None


def _attend(
    module: Any,
    rule: Rule,
    window: int | None,
    query: Tensor,
    key: Any,
    value: Any,
    attention_mask: Tensor | None = None,
) -> tuple[Tensor, Any]:
    if not isinstance(key, States):
        stock: tuple[Tensor, Tensor] = type(module)._attn(module, query, key, value, attention_mask)
        return stock
    query = query.to(module.out_proj.weight.dtype)  # rotation is in float32
    return key.attend(query, rule, window).transpose(1, 2), None
