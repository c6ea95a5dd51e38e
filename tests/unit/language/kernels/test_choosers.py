"""Routers choose all experts, and indexes few tokens, for a comparison of ways of computing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.tiny import MORE_MODELS
from tests.support.tiny.latent import deepseek_v32
from ts_stateful.language.kernels.choosers import all_chosen, few_chosen


@pytest.mark.parametrize(
    ("name", "where", "chosen", "num"),
    [
        ("gpt_oss", "router", 2, 4),
        ("mixtral", "gate", 2, 4),
        ("olmoe", "gate", 3, 8),
        ("qwen3_moe", "gate", 3, 8),
    ],
)
def test_all_are_chosen_meanwhile(name: str, where: str, chosen: int, num: int) -> None:
    """And as many as before afterwards."""
    network: Any = MORE_MODELS[name]().network
    router = getattr(network.model.layers[1].mlp, where)
    with all_chosen(network):
        assert router.top_k == num
        assert network(torch.tensor([[1, 2, 3]])).logits.isfinite().all()
    assert router.top_k == chosen


def test_half_precision_is_not_verified_with_fewer() -> None:
    """Rounding changes the choice."""
    network: Any = deepseek_v32().network
    index = network.model.layers[0].self_attn.indexer
    before = index.index_topk
    with few_chosen(network):
        assert index.index_topk < before
    with few_chosen(network.to(torch.bfloat16)):
        assert index.index_topk == before
