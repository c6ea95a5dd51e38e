"""The rules of a model's attention layers, as its configuration has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.cache_utils import get_layer_types_and_kwargs

from ts_stateful.language.kernels.own_attention import own_windows

__all__ = ["INDEXED", "RECURRENT", "layer_chunks", "layer_kinds", "layer_windows", "short_chunks"]

INDEXED = "indexed_attention"  # layers that choose tokens by a further key of each
# Kinds of layers with recurrent or convolution states, some beside attention.
RECURRENT = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding"})


def layer_kinds(config: Any) -> set[str]:
    """Return the kinds of layers, by the library's names."""
    return set(get_layer_types_and_kwargs(config)[0])


def layer_windows(config: Any) -> list[int | None]:
    """Return the window in tokens of every layer that keeps states; None where there is none."""
    return own_windows(config) or _lengths(config, "sliding_attention")


def layer_chunks(config: Any) -> list[int | None]:
    """Return the chunk in tokens of every layer that keeps states; an empty list if no layer has one."""
    chunks = _lengths(config, "chunked_attention")
    return chunks if any(chunks) else []


def _lengths(config: Any, kind: str) -> list[int | None]:
    """Return the lengths that the library has for layers of this kind; a "dummy" layer keeps no states."""
    return [
        layer["sliding_window"] if layer_kind == kind else None
        for layer_kind, layer in zip(*get_layer_types_and_kwargs(config), strict=True)
        if layer_kind != "dummy"
    ]


@contextmanager
def short_chunks(config: Any, size: int) -> Iterator[None]:
    """Let layers that attend in chunks do so in chunks of `size` tokens meanwhile."""
    if not layer_chunks(config):
        yield
        return
    before, config.attention_chunk_size = config.attention_chunk_size, size
    try:
        yield
    finally:
        config.attention_chunk_size = before
