"""Weights that are split over the ranks: single numbers of them, and passes with whole ones, to compare those of parts with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

__all__ = ["elements", "is_split", "whole_weights"]


def elements(weights: Sequence[DTensor], indices: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return elements of each whole weight by their flat indices, in float32; every rank must call it.

    Weights that are cut into one piece for each rank are not gathered.
    """
    found = [_here(weight, places) for weight, places in zip(weights, indices, strict=True)]
    if not found:
        return []
    # Sums of integers, of which one is not 0: unlike those of floats, they keep the sign of a zero.
    total = torch.cat(found).view(torch.int32)
    distributed.all_reduce(total)
    return list(total.view(torch.float32).split([len(places) for places in indices]))


def _here(weight: DTensor, places: Sequence[int]) -> Tensor:
    """Return the elements that this rank contributes, and 0 for others."""
    is_cut = len(weight.placements) == 1 and type(weight.placements[0]) is Shard
    flat = torch.tensor(places, device=weight.to_local().device)
    if not is_cut:
        whole = weight.full_tensor().reshape(-1)[flat].float()
        return whole if distributed.get_rank() == 0 else torch.zeros_like(whole)
    mesh, placements = weight.device_mesh, weight.placements
    sizes, offsets = compute_local_shape_and_global_offset(weight.shape, mesh, placements)
    found, local = torch.zeros(len(places), device=flat.device), weight.to_local()
    coordinates = torch.stack(torch.unravel_index(flat, weight.shape), dim=-1)
    coordinates -= torch.tensor(offsets, device=flat.device)
    is_here = ((coordinates >= 0) & (coordinates < torch.tensor(sizes, device=flat.device))).all(-1)
    found[is_here] = local[tuple(coordinates[is_here].unbind(-1))].float()
    return found


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
