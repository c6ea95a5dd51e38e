"""Features of images that are added to the hidden states of a stock decoder, after each of its first layers.

The form is that of DeepStack (https://arxiv.org/abs/2406.04334), as Qwen3-VL has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

__all__ = ["deepstack_added"]


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
