"""Kernels are used only after they agreed with torch's operators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.table_kernels import TableKernels
from ts_stateful.language.kernels.rule import Rule
from ts_stateful.language.kernels.select import find_kernels, verify_kernels
from ts_stateful.language.kv.layout import KVLayout, LayerShape
from ts_stateful.language.kv.spans import Table

CPU = torch.device("cpu")
LAYOUT = KVLayout((LayerShape(2, 16, 8), LayerShape(2, 16, 8), LayerShape(1, 8, 8)), torch.float32)
NUM_HEADS = 4
HANDLERS = Path(__file__).resolve().parents[4] / "handlers"


class _Shifted(TableKernels):
    """Kernels that write every token one position too far."""

    def write(self, keys: Tensor, values: Tensor, table: Table, layer: int) -> None:
        shifted = table.buffer.clone()
        shifted[table.num_tokens : 2 * table.num_tokens] += 1
        moved = Table(shifted, table.num_tokens, table.num_rows, table.num_spans)
        super().write(keys, values, moved, layer)


class _Windowless(TableKernels):
    """Kernels that ignore windows."""

    def attend(
        self, query: Tensor, table: Table, layer: int, rule: Rule, window: int | None
    ) -> Tensor:
        return super().attend(query, table, layer, rule, None)


class _NotANumber(TableKernels):
    """Kernels that return NaN."""

    def attend(
        self, query: Tensor, table: Table, layer: int, rule: Rule, window: int | None
    ) -> Tensor:
        return super().attend(query, table, layer, rule, window) * torch.nan


def test_kernels_that_agree_are_taken() -> None:
    """The result is empty for correct kernels, for every shape of layer."""
    assert verify_kernels(TableKernels, LAYOUT, NUM_HEADS, CPU) == ""


def test_layers_without_states_are_not_tried() -> None:
    """They attend to images, or to nothing."""
    layers = (LayerShape(0, 0, 0), *LAYOUT.layers)
    assert verify_kernels(TableKernels, KVLayout(layers, torch.float32), NUM_HEADS, CPU) == ""


@pytest.mark.parametrize(
    ("kernels", "reason"),
    [
        (_Shifted, "wrong places"),
        (_Windowless, "window 33"),
        (_NotANumber, "differ by nan"),
    ],
)
def test_kernels_that_differ_are_rejected(kernels: type[TableKernels], reason: str) -> None:
    """The result is the reason."""
    assert reason in verify_kernels(kernels, LAYOUT, NUM_HEADS, CPU)


def test_other_devices_have_no_kernels() -> None:
    """Torch's operators compute, and nothing is verified."""
    assert find_kernels(LAYOUT, NUM_HEADS, torch.device("meta")) is None


def test_a_cpu_needs_no_triton() -> None:
    """Without it everything can be imported, and its kernels are not imported."""
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, ts_stateful.language.engine\n"
        "from ts_stateful.language.kernels.select import find_kernels\n"
        "from ts_stateful.language.kv.layout import KVLayout, LayerShape\n"
        "layout = KVLayout((LayerShape(2, 16, 16),), torch.float32)\n"
        "find_kernels(layout, 4, torch.device('cpu'))\n"
        "assert 'ts_stateful.language.kernels.gpu.triton' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=HANDLERS
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_a_gpu_has_kernels() -> None:
    """They are there, and agree, in every dtype."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        layout = KVLayout(LAYOUT.layers, dtype)
        assert find_kernels(layout, NUM_HEADS, torch.device("cuda")) is not None
