"""Which models compute all sessions in one pass, verified when they are loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.harness import Harness, reference_reply
from tests.support.tiny import MORE_MODELS
from tests.support.tiny.more_text import bloom, gemma3n, llama4, qwen2_moe
from tests.support.tiny.own_attention import gpt_neo
from tests.support.tiny.small import SMALL
from tests.support.tiny.text import WINDOW
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.kernels.samples import sample
from ts_stateful.language.network import one_pass
from ts_stateful.language.network.layer_kinds import layer_chunks, layer_windows
from ts_stateful.language.network.layout import find_layout
from ts_stateful.language.network.load import accelerate
from ts_stateful.language.network.one_pass import find_forward

OWN_CODE = "computes its attention by code of its own, which takes one session at a time"
LINEAR = (
    "bamba",
    "falcon_mamba",
    "granite_hybrid",
    "jamba",
    "kimi_linear",
    "mamba",
    "nemotron_h",
    "olmo_hybrid",
    "qwen3_5",
    "qwen3_5_vision",
)
RECURRENT = {
    "falcon_h1": "its layers of hybrid take one session at a time",
    "lfm2": "its layers of conv take one session at a time",
    "lfm2_vl": "its layers of conv take one session at a time",
    "lfm2_moe": "its layers of conv take one session at a time",
    **dict.fromkeys(LINEAR, "its layers of linear_attention take one session at a time"),
}


@pytest.mark.parametrize("name", sorted(MORE_MODELS))
def test_all_are_computed_in_one_pass(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """With recurrent states, replies are computed in one, and prompts are not; the log names the reason."""
    caplog.set_level("INFO")
    model = MORE_MODELS[name]()
    assert model.forward.flat is (name not in RECURRENT)
    assert model.forward.batched is (name in RECURRENT)
    assert RECURRENT.get(name, "") in caplog.text
    assert ("one forward pass for all replies" in caplog.text) is (name in RECURRENT)
    assert "every session gets its own forward pass" not in caplog.text


def test_code_that_takes_one_session_keeps_a_pass_for_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the class."""
    monkeypatch.setattr(one_pass, "exchange_biased", lambda network: None)
    assert not bloom().forward.flat
    assert f"own forward pass: BloomForCausalLM {OWN_CODE}" in caplog.text


def test_windows_that_no_attention_receives_keep_a_pass_for_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The samples do not reach their ends, so the configuration counts."""
    monkeypatch.setattr(one_pass, "layer_windows", lambda config: [WINDOW, WINDOW])
    assert not qwen2_moe().forward.flat
    reason = f"its attention receives windows [{WINDOW}, None], not its configuration's"
    assert reason in caplog.text


def test_the_rules_of_layers_come_from_the_configuration() -> None:
    """Chunks, windows, and layers that read the states of earlier ones and keep none."""
    chunked, sharing, local = llama4(), gemma3n(), gpt_neo()
    assert layer_chunks(chunked.network.config) == [WINDOW, None, WINDOW, None]
    assert layer_windows(chunked.network.config) == [None] * 4
    assert layer_windows(sharing.network.config) == [WINDOW, None]
    assert len(sharing.forward.layout.layers) == 2
    assert layer_windows(local.network.config) == [None, WINDOW, None, WINDOW]
    assert layer_chunks(LlamaConfig(**SMALL)) == []


def test_chunks_are_verified_beyond_their_end() -> None:
    """A model that attends in other chunks than its configuration says gets a pass for each session."""
    network: Any = llama4().network
    network.set_attn_implementation("sdpa")  # as it was loaded
    stock = network.model.forward

    def unchunked(*args: Any, **kwargs: Any) -> Any:
        chunk, network.config.attention_chunk_size = network.config.attention_chunk_size, 1000
        try:
            return stock(*args, **kwargs)
        finally:
            network.config.attention_chunk_size = chunk

    network.model.forward = unchunked
    forward = find_forward(network, find_layout(network, "llama4"))
    assert not forward.flat
    assert network.config.attention_chunk_size == WINDOW


@pytest.mark.parametrize("make", [gemma3n, gpt_neo, llama4])
def test_replies_with_kernels_are_those_of_stock_code(make: Any) -> None:
    """Kernels follow shared layers and own windows, and leave chunks to torch."""
    model = make()
    accelerate(model, HandlerConfig())
    harness = Harness(model)
    for index in range(3):
        harness.open(f"s{index}")
    for index in range(3):
        harness.prompt(f"s{index}", "What is it? " * (1 + 3 * index), max_new_tokens=WINDOW)
        reference_reply(model, harness, f"s{index}", WINDOW)


def test_positions_can_be_counted_from_the_cache() -> None:
    """Stock code that adds the tokens before a step to a range finds every session's own positions."""
    network = LlamaForCausalLM(LlamaConfig(**SMALL)).eval()
    forward = find_forward(network, find_layout(network, "llama"))
    sample(forward, ((4, 1), (2, 2)))
    seen = forward.cache.get_seq_length()
    assert isinstance(seen, torch.Tensor)
    assert (torch.arange(3) + seen).tolist() == [4, 2, 3]
