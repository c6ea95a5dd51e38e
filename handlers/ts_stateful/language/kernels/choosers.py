"""Modules of stock networks that choose: routers experts, and indexes tokens.

Ways of computing are compared while they choose other numbers of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

__all__ = ["all_chosen", "few_chosen"]

_FEW = 2  # tokens


@contextmanager
def all_chosen(network: PreTrainedModel) -> Iterator[None]:
    """Let routers choose all of their experts meanwhile.

    Where two experts are about as good, rounding exchanges them, and the logits then differ as much as by a defect.
    """
    routers: list[Any] = [m for m in network.modules() if type(m).__name__.endswith("TopKRouter")]
    with _changed("top_k", {router: router.num_experts for router in routers}):
        yield


@contextmanager
def few_chosen(network: PreTrainedModel) -> Iterator[None]:
    """Let indexes choose fewer tokens meanwhile than a short sample has.

    In half precision they choose as before, because rounding would change the choice.
    """
    exact = network.dtype is torch.float32
    indexes = [m for m in network.modules() if exact and hasattr(m, "index_topk")]
    with _changed("index_topk", dict.fromkeys(indexes, _FEW)):
        yield


@contextmanager
def _changed(name: str, counts: Mapping[Any, int]) -> Iterator[None]:
    before = {module: getattr(module, name) for module in counts}
    try:
        for module, count in counts.items():
            setattr(module, name, count)
        yield
    finally:
        for module, count in before.items():
            setattr(module, name, count)
