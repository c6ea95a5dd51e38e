"""Weights begin at cache lines after a model is loaded."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.support.tiny.small import save
from tests.support.tiny.text import llama
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.kernels.cpu.weight_memory import align_weights
from ts_stateful.language.network.load import load_model

LINE = 64


def unaligned(*shape: int) -> torch.Tensor:
    """Random numbers in memory that begins 8 bytes after a cache line."""
    return torch.randn(2 + torch.Size(shape).numel())[2:].view(shape)


def test_weights_inside_a_line_are_copied_and_stay_tied() -> None:
    """Others stay where they are, and buffers are copied too."""
    first, second = nn.Linear(16, 16), nn.Linear(16, 16, bias=False)
    network = nn.Sequential(first, second)
    weight = unaligned(16, 16)
    first.weight = second.weight = nn.Parameter(weight)
    table = unaligned(4)
    network.register_buffer("table", table)
    bias = first.bias.data_ptr()
    assert align_weights(network) == 4 * (16 * 16 + 4)
    assert first.weight is second.weight
    assert torch.equal(first.weight, weight)
    assert first.weight.data_ptr() % LINE == table.data_ptr() % LINE == 0
    assert first.bias.data_ptr() == bias
    assert align_weights(network) == 0


def pad_header(file: Path, begin: int) -> None:
    """Let a file's weights begin at this place in a cache line."""
    content = file.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = content[8 : 8 + size] + b" " * ((begin - 8 - size) % LINE)
    file.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])


@pytest.mark.parametrize("begin", [0, 8])
def test_a_loaded_model_is_aligned(begin: int, tmp_path: Path) -> None:
    """The weights are those of the checkpoint, but not in its file, even if that aligns them."""
    folder = save(llama(), tmp_path / "model")
    pad_header(folder / "model.safetensors", begin)
    model = load_model(HandlerConfig(model=str(folder)), folder, torch.device("cpu"))
    found = dict(model.network.named_parameters())
    assert all(weight.data_ptr() % LINE == 0 for weight in found.values())
    assert str(folder) not in Path("/proc/self/maps").read_text(encoding="utf-8")
    for name, weight in load_file(folder / "model.safetensors").items():
        assert torch.equal(found[name], weight)
