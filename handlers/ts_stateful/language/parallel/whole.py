"""A split model that computes a pass with whole weights, to compare the passes of its parts with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

__all__ = ["is_split", "whole_weights"]


def is_split(network: nn.Module) -> bool:
    """Return True if some of the weights are split over ranks."""
    return any(isinstance(parameter, DTensor) for parameter in network.parameters())


@contextmanager
def whole_weights(network: nn.Module) -> Iterator[None]:
    """Let every rank compute everything meanwhile, by stock code alone; each must do so at the same time.

    A module's weights are gathered when it is called, and released after it, so there is no need for much memory.
    """
    hooks, exchanged = [], []
    for module in network.modules():
        if "forward" in vars(module) and getattr(module, "_is_hooked", False):
            exchanged.append((module, vars(module).pop("forward")))
        parts = {n: p for n, p in module._parameters.items() if isinstance(p, DTensor)}
        if parts:
            hooks.append(module.register_forward_pre_hook(partial(_gather, parts)))
            hooks.append(module.register_forward_hook(partial(_release, parts), always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, forward in exchanged:
            module.forward = forward


def _gather(parts: dict[str, Any], module: nn.Module, _inputs: Any) -> None:
    for name, part in parts.items():
        module._parameters[name] = nn.Parameter(part.full_tensor(), requires_grad=False)


def _release(parts: dict[str, Any], module: nn.Module, *_: Any) -> None:
    module._parameters.update(parts)
