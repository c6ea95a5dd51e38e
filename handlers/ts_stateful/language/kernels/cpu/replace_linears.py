"""Which linear layers of a stock network are worth another implementation, and their exchange in place.

Owns the choice. Knows nothing of implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeGuard

import torch
from torch import nn

__all__ = ["children", "exchange"]

_SMALLEST: Final = 1 << 16  # elements of a weight below which a call takes longer than the reading


@torch.no_grad()
def exchange(network: nn.Module, make: Callable[[nn.Linear], nn.Module | None]) -> int:
    """Exchanges linear layers for what `make` makes of them, None for nothing, in place; returns how many.

    Subclasses of `nn.Linear`, layers with hooks and small ones stay; one that several modules share stays one.
    """
    made: dict[nn.Module, nn.Module | None] = {}
    for parent, name, child in children(network):
        if _is_worthwhile(child):
            if child not in made:
                made[child] = make(child)
            other = made[child]
            if other is not None:
                setattr(parent, name, other)
    return sum(other is not None for other in made.values())


def children(network: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Every module but the network itself, with its parent and its name there; one with several parents comes several times."""
    for parent in list(network.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None:
                yield parent, name, child


def _is_worthwhile(module: nn.Module) -> TypeGuard[nn.Linear]:
    return (
        type(module) is nn.Linear
        and not (module._forward_hooks or module._forward_pre_hooks)
        and module.weight.numel() >= _SMALLEST
    )
