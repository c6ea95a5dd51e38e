"""Cosines and sines that are looked up are the stock module's, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.support.tiny import MODELS
from ts_stateful.language.kernels.rotary import Rotary

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
HIDDEN = torch.zeros(1, 1)


def module_of(parameters: dict[str, Any]) -> Any:
    return LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=64,
            num_attention_heads=4,
            max_position_embeddings=128,
            rope_parameters={"rope_theta": 10_000.0, **parameters},
        )
    )


@pytest.mark.parametrize(
    "parameters",
    [{"rope_type": "default"}, {"rope_type": "linear", "factor": 3.0}, LLAMA3],
    ids=lambda parameters: parameters["rope_type"],
)
def test_each_position_is_computed_once(parameters: dict[str, Any]) -> None:
    """Later steps look it up, in any order; a higher one extends the table."""
    module, stock = module_of(parameters), module_of(parameters)
    calls: list[object] = []
    module.register_forward_hook(lambda *call: calls.append(call))
    rotary = Rotary(module)
    rotary(HIDDEN, torch.tensor([[0]]))
    for positions in ([[40]], [[7, 8, 900, 1]], [[30_000]], [[5, 29_999]]):
        calls.clear()
        found = rotary(HIDDEN, torch.tensor(positions))
        assert len(calls) == (positions == [[30_000]])
        assert all(map(torch.equal, found, stock(HIDDEN, torch.tensor(positions))))


def test_positions_that_depend_on_the_step_stay_with_the_module() -> None:
    """Dynamic frequencies follow the longest sequence of a step."""
    module, stock = (module_of({"rope_type": "dynamic", "factor": 2.0}) for _ in range(2))
    rotary = Rotary(module)
    for positions in ([[3]], [[500]], [[501]], [[9]]):
        found, expected = (each(HIDDEN, torch.tensor(positions)) for each in (rotary, stock))
        assert all(map(torch.equal, found, expected))


def test_each_kind_of_layer_has_its_own() -> None:
    """They are those that the module gives for the kind."""
    module: Any = MODELS["gemma3"]().network.get_decoder().rotary_emb
    rotary, positions = Rotary(module), torch.tensor([[3, 70, 4]])
    expected = [module(HIDDEN, positions, kind) for kind in rotary.kinds]
    assert len(expected) == 2
    for found, parts in zip(rotary(HIDDEN, positions), zip(*expected, strict=True), strict=True):
        assert torch.equal(found, torch.cat(parts))
