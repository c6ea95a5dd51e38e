"""Routers of stock networks, which choose experts for each token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

__all__ = ["all_chosen"]


@contextmanager
def all_chosen(network: PreTrainedModel) -> Iterator[None]:
    """Let routers choose all of their experts meanwhile, in a model that rounds to 16 bits.

    Ways of computing are compared so: where two experts are about as good, rounding exchanges them, and the logits then differ
    as much as by a defect. In float32 that is rare, and the choice is compared too.
    """
    routers: list[Any] = []
    if network.dtype is not torch.float32:
        routers = [m for m in network.modules() if type(m).__name__.endswith("TopKRouter")]
    chosen = [router.top_k for router in routers]
    for router in routers:
        router.top_k = router.num_experts
    try:
        yield
    finally:
        for router, count in zip(routers, chosen, strict=True):
            router.top_k = count
