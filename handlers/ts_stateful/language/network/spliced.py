"""Features of images and clips in a stock decoder: in the place of embeddings, and added to its hidden states.

The form of the second is that of DeepStack (https://arxiv.org/abs/2406.04334), as Qwen3-VL has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ts_stateful.language.kv.host_copies import to_device

__all__ = ["deepstack_added", "splice"]


def splice(
    network: PreTrainedModel, ids: Sequence[int], stands: Tensor, maps: Sequence[Tensor]
) -> tuple[Tensor, Tensor | None]:
    """Return `embedded` and `deepstack` of `Rows`; `stands` `(n,)` are the tokens that are not text, `maps` their features."""
    embeddings = network.get_input_embeddings()
    text: Tensor = embeddings(to_device(ids, network.device)[None].masked_fill(stands, 0))
    embedded, *others = (text, *text.new_zeros(len(maps) - 1, *text.shape))
    for target, rows in zip((embedded, *others), maps, strict=True):
        target[0, stands] = rows.to(text.dtype)
    return embedded, torch.cat(others) if others else None


@contextlib.contextmanager
def deepstack_added(network: PreTrainedModel, deepstack: Tensor | None) -> Iterator[None]:
    """Let the first layers of a network's decoder add `deepstack` `(layers, n, hidden)`, if there is one, to their outputs."""
    if deepstack is None:
        yield
        return
    layers: Any = network.get_decoder().layers
    hooks = [
        layer.register_forward_hook(partial(_add, features))
        for layer, features in zip(layers, deepstack, strict=False)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _add(features: Tensor, _layer: Any, _inputs: Any, hidden: Tensor) -> Tensor:
    return hidden + features
