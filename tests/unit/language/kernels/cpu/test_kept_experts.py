"""Experts that are held in another form compute what stock ones do."""

from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.kernels import language_kernels
from tests.support.tiny import MORE_MODELS
from ts_stateful.language.kernels.cpu.kept_experts import (
    CompactExperts,
    TurnedExperts,
    keep_experts,
)

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)


def experts_of(name: str) -> Any:
    """Return the experts of a small model's first layer, with random biases and gates that are clamped."""
    experts = MORE_MODELS[name]().network.model.layers[0].mlp.experts
    generator = torch.Generator().manual_seed(1)
    for parameter in experts.parameters():
        parameter.data.normal_(generator=generator)
        if name == "mixtral":
            parameter.data = parameter.data.bfloat16().float()
    return experts


def routes(num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states of tokens, and two experts of each with their shares."""
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(num_tokens, 64, generator=generator)
    chosen = torch.rand(num_tokens, 4, generator=generator).topk(2).indices
    return hidden, chosen, torch.rand(num_tokens, 2, generator=generator)


def assert_all_ways(experts: Any, routed: tuple[Tensor, ...], expected: Tensor) -> None:
    """By kernels where the tokens are few, and by torch, which alone computes with gradients."""
    torch.testing.assert_close(experts(*routed), expected, rtol=1e-4, atol=1e-3)
    with torch.inference_mode(False), torch.enable_grad():
        torch.testing.assert_close(
            experts(*(part.clone() for part in routed)), expected, rtol=1e-4, atol=1e-3
        )


@torch.inference_mode()
@pytest.mark.parametrize("num_tokens", [1, 9, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_turned_experts_are_those_of_gpt_oss(dtype: torch.dtype, num_tokens: int) -> None:
    """Weights that 16 bits hold give the same outputs from either dtype."""
    stock = experts_of("gpt_oss")
    for weights in (stock.gate_up_proj, stock.down_proj):
        weights.data = weights.data.to(dtype).float()
    routed = routes(num_tokens)
    expected = stock(*routed)
    turned = TurnedExperts(stock, dtype, language_kernels())
    assert turned.gate_up_proj.dtype is turned.down_proj.dtype is dtype
    assert_all_ways(turned, routed, expected)


@torch.inference_mode()
@pytest.mark.parametrize("num_tokens", [1, 9, 200])
def test_compact_experts_are_those_of_mixtral(num_tokens: int) -> None:
    """Their weights are widened where they are multiplied."""
    stock = experts_of("mixtral")
    routed = routes(num_tokens)
    expected = stock(*routed)
    assert_all_ways(CompactExperts(stock, torch.bfloat16, language_kernels()), routed, expected)


def test_experts_that_kernels_do_not_serve_are_left() -> None:
    """Those with hooks, and all of other models without a dtype."""
    network: Any = MORE_MODELS["gpt_oss"]().network
    hooked = copy.deepcopy(network)
    hooked.model.layers[0].mlp.experts.register_forward_hook(lambda *_: None)
    for each in (network, hooked):
        keep_experts(each, language_kernels(), {})
    kinds = [[type(layer.mlp.experts) for layer in n.model.layers] for n in (network, hooked)]
    assert set(kinds[0]) == {TurnedExperts} == set(kinds[1][1:])
    assert kinds[1][0] is not TurnedExperts
    mixtral: Any = MORE_MODELS["mixtral"]().network
    keep_experts(mixtral, language_kernels(), {})
    assert type(mixtral.model.layers[0].mlp.experts).__name__ == "MixtralExperts"
