"""The group of the ranks of a split model, by `torch.distributed`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import Tensor, distributed

from ts_stateful.engine.services import Ranks

__all__ = ["all_ranks", "broadcast", "join_ranks"]

_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def join_ranks(ranks: Ranks, device: torch.device, timeout_s: float) -> None:
    """Form the group; return when all ranks have joined it. Transformers finds the device by the environment."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")  # nothing listens elsewhere
    if device.type == "cuda":
        os.environ["LOCAL_RANK"] = str(device.index)
        torch.cuda.set_device(device)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # or it would take a GPU
    distributed.init_process_group(
        _BACKENDS[device.type],
        store=distributed.FileStore(ranks.meeting, ranks.count),  # type: ignore[attr-defined]
        rank=ranks.number,
        world_size=ranks.count,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )


def broadcast(tensors: Sequence[Tensor]) -> None:
    """Send tensors from the driver, or receive them in a follower."""
    for tensor in tensors:
        distributed.broadcast(tensor.contiguous(), 0)


def all_ranks(choice: bool) -> bool:
    """Return True if this is the choice of all ranks, or of the only one; each of them must call it."""
    if not distributed.is_initialized():
        return choice
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    chosen = torch.tensor(int(choice), device=device)
    distributed.all_reduce(chosen, distributed.ReduceOp.MIN)
    return bool(chosen)
