"""A network is recognized only if every part of it is a stock one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tiny import MODELS, MORE_MODELS, llama
from ts_stateful.language.kernels.decoder_layout import UnknownDecoderError, find_decoder


@pytest.mark.parametrize(
    "name", ["gemma3", "llama", "llava", "mixtral", "olmo2", "qwen2_vl", "qwen3"]
)
def test_known_families_are_recognised(name: str) -> None:
    """The parts are the network's own."""
    network = {**MODELS, **MORE_MODELS}[name]().network
    decoder = find_decoder(network)
    assert decoder.embeddings is network.get_input_embeddings()
    assert decoder.head is network.get_output_embeddings()
    assert len(decoder.layers) == network.config.get_text_config(decoder=True).num_hidden_layers


@pytest.mark.parametrize("name", ["cohere", "gemma3n", "gpt2", "qwen2_moe", "stablelm"])
def test_other_families_are_not(name: str) -> None:
    """The reason names the class."""
    network = {**MODELS, **MORE_MODELS}[name]().network
    with pytest.raises(UnknownDecoderError, match=type(network).__name__):
        find_decoder(network)


def test_clipped_queries_are_not_computed() -> None:
    """OLMoE can be configured to clip what stock code projects."""
    network = MORE_MODELS["olmoe"]().network
    assert find_decoder(network).num_positions is None
    network.config.clip_qkv = 3.0
    with pytest.raises(UnknownDecoderError, match="clips"):
        find_decoder(network)


class _Own(nn.Linear):
    """A user's layer."""


def _activation(network: Any) -> None:
    network.model.layers[1].mlp.act_fn = nn.GELU()


def _linear(network: Any) -> None:
    network.model.layers[1].mlp.up_proj = _Own(64, 128, bias=False)


def _norm(network: Any) -> None:
    network.model.layers[0].input_layernorm = nn.LayerNorm(64)


def _layer(network: Any) -> None:
    network.model.layers[1] = nn.Identity()


def _dropped(network: Any) -> None:
    network.model.layers = network.model.layers[:1]


def _forward(network: Any) -> None:
    network.model.layers[0].forward = lambda *args, **kwargs: None


def _half(network: Any) -> None:
    network.model.layers[0].mlp.to(torch.bfloat16)


def _half_at_last(network: Any) -> None:
    network.model.norm.to(torch.bfloat16)


def _training(network: Any) -> None:
    network.model.layers[0].train()


@pytest.mark.parametrize(
    "change",
    [_activation, _linear, _norm, _layer, _dropped, _forward, _half, _half_at_last, _training],
)
def test_a_network_that_was_changed_is_not(change: Callable[[Any], None]) -> None:
    """Any changed part prevents recognition."""
    network = llama().network
    change(network)
    if change is not _training:
        network.eval()
    with pytest.raises(UnknownDecoderError):
        find_decoder(network)
