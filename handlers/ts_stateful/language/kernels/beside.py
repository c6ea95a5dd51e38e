"""Attention of a model's layers to images beside the text, for the tokens of many sessions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["ImageStates", "Run", "exchange_beside"]


class Run(NamedTuple):
    """Adjacent tokens that attend to the same images.

    `parts` has, for each image, the keys and values of every such layer in turns, `(heads, rows, dim)`, and the number of rows
    that are seen. A token before the first image `looks_on`: its layer's attention reaches all images, as in stock code.
    """

    num_tokens: int
    parts: Sequence[tuple[tuple[Tensor, ...], int]]
    looks_on: bool = False


class ImageStates:
    """The keys and values of images that the tokens of a step attend to; stock code passes them on to its layers."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs

    def attend(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Return the attention of queries `(1, heads, tokens, dim)`, in their shape; `layer` counts such layers."""
        counts = [run.num_tokens for run in self._runs]
        outputs = []
        for run, part in zip(self._runs, query.split(counts, dim=2), strict=True):
            if not run.parts:
                outputs.append(torch.zeros_like(part))
                continue
            keys, values = (
                _joined([states[2 * layer + which][:, :rows] for states, rows in run.parts])
                for which in (0, 1)
            )
            outputs.append(
                scaled_dot_product_attention(part, keys, values, scale=scaling, enable_gqa=True)
            )
        return torch.cat(outputs, dim=2)


def _joined(parts: list[Tensor]) -> Tensor:
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))[None]


def exchange_beside(layers: Sequence[nn.Module]) -> None:
    """Let these layers' attention take `ImageStates`; tensors go to stock code as before."""
    for index, layer in enumerate(layers):
        exchanged: Any = layer
        exchanged.forward = partial(_forward, layer, index)


def _forward(
    module: Any,
    index: int,
    hidden_states: Tensor,
    cross_attention_states: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Any]:
    if not isinstance(cross_attention_states, ImageStates):
        stock: tuple[Tensor, Any] = type(module).forward(
            module, hidden_states, cross_attention_states, **kwargs
        )
        return stock
    shape = (*hidden_states.shape[:-1], module.num_heads, module.head_dim)
    query = module.q_norm(module.q_proj(hidden_states).view(shape).transpose(1, 2))
    attended = cross_attention_states.attend(index, query, module.scaling)
    return module.o_proj(attended.transpose(1, 2).flatten(2)), None
