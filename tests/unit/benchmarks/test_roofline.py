"""What a GPU could do at best, by its datasheet."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.gpu.network import TINY
from benchmarks.gpu.roofline import DEVICES, MODEL, Device, Text, fits, step_s, table

GPU = Device("round numbers", memory=2e6, bandwidth=1e6, host_bandwidth=1e5, flops=1e9)


def test_the_weights_are_those_of_the_network() -> None:
    """Its matrices without the embeddings, of which a token reads one row."""
    config = LlamaConfig(**{**TINY.text, "num_key_value_heads": 4})
    network = AutoModelForCausalLM.from_config(config)
    matrices = [p for p in network.parameters() if p.dim() == 2]
    embeddings = network.get_input_embeddings().weight
    text = Text(layers=2, hidden=64, intermediate=128, vocabulary=8064)
    assert text.num_weights == sum(p.numel() for p in matrices) - embeddings.numel()
    assert text.token_bytes == 2 * 2 * 2 * 64


def test_a_step_takes_the_longer_of_reading_and_computing() -> None:
    """One token waits for memory, a thousand for multiplications."""
    text = Text(layers=1, hidden=10, intermediate=10, vocabulary=30)  # 1,000 weights
    assert step_s(GPU, text, tokens=1, history=0) == pytest.approx(2e-3)
    assert step_s(GPU, text, tokens=1, history=100) == pytest.approx(6e-3)
    assert step_s(GPU, text, tokens=5000, history=0) == pytest.approx(1e-2)


def test_states_that_do_not_fit_have_no_rate() -> None:
    """As 32 sessions on the smallest GPU."""
    assert fits(DEVICES[0], MODEL, 8000)
    assert not fits(DEVICES[0], MODEL, 32_000)
    assert "/ - |" in table().splitlines()[2]


def test_the_documents_have_the_table(repository: Path) -> None:
    """As the program prints it."""
    assert table() in (repository / "docs" / "performance.md").read_text()
