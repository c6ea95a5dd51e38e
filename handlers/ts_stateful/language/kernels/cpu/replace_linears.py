"""Replacement of a stock network's linear layers, in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeGuard

import torch
from torch import nn

__all__ = ["child_modules", "is_replaceable", "replace_linears"]

_SMALLEST: Final = 1 << 16  # weight elements; for fewer a call takes longer than reading them
_READ: Final = {"kv_b_proj"}  # layers whose weights `latent` reads as they are


@torch.no_grad()
def replace_linears(network: nn.Module, make: Callable[[nn.Linear], nn.Module | None]) -> int:
    """Replace linear layers by what `make` returns for them, None for nothing, in place; return their number.

    Subclasses of `nn.Linear`, layers with hooks, small ones and those that expand latents stay. A layer that several
    modules share stays shared.
    """
    made: dict[nn.Module, nn.Module | None] = {}
    for parent, name, child in child_modules(network):
        if name not in _READ and is_replaceable(child):
            if child not in made:
                made[child] = make(child)
            other = made[child]
            if other is not None:
                setattr(parent, name, other)
    return sum(other is not None for other in made.values())


def child_modules(network: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yield every module except the network itself, with its parent and its name there, once for each parent."""
    for parent in list(network.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None:
                yield parent, name, child


def is_replaceable(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Return True for a plain linear layer that is large enough to gain."""
    return (
        type(module) is nn.Linear
        and type(module.weight) is nn.Parameter  # not a quantised one
        and not (module._forward_hooks or module._forward_pre_hooks)
        and module.weight.numel() >= _SMALLEST
    )
