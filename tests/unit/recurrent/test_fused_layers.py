"""LSTM and GRU layers by the compiled kernel, compared with torch's operators on the same weights."""

from __future__ import annotations

import copy
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ts_stateful.cpu_kernels.build import is_worthwhile
from ts_stateful.recurrent.fused_layers import fuse_layers

CPU = torch.device("cpu")
pytestmark = [
    pytest.mark.skipif(
        not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
    ),
    pytest.mark.skipif(not is_worthwhile(CPU, torch.float32), reason="not used on this processor"),
]
INPUTS, UNITS = 23, 48
KINDS: dict[str, Callable[..., nn.Module]] = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "LSTMCell": nn.LSTMCell,
    "GRUCell": nn.GRUCell,
}


class Recurrent(nn.Module):
    """A layer with its states as separate arguments and results."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, input: Tensor, *states: Tensor) -> list[Tensor]:
        """Run the layer."""
        made = self.layer(input, states if len(states) == 2 else states[0])
        flat = list[Tensor]()
        for one in made if isinstance(made, tuple) else (made,):
            flat.extend(one if isinstance(one, tuple) else (one,))
        return flat


def given(kind: str, rows: int, shape: Sequence[int], *, layers: int = 1) -> list[Tensor]:
    """Return an input of a shape, and states."""
    torch.manual_seed(rows)
    states = (rows, UNITS) if kind.endswith("Cell") else (layers, rows, UNITS)
    number = 2 if kind.startswith("LSTM") else 1
    return [torch.randn(*shape), *(torch.randn(*states) for _ in range(number))]


def both(module: nn.Module, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return what torch computes, with weights of its own, and what `module` does after `fuse_layers`."""
    stock = copy.deepcopy(module)
    fuse_layers(module, CPU)
    with torch.inference_mode():
        return stock(*tensors), module(*tensors)


def is_fused(caplog: pytest.LogCaptureFixture) -> bool:
    """Return True if the log says so."""
    return any("is fused" in record.message for record in caplog.records)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_steps_equal_those_of_torch(
    kind: str, batch_first: bool, layers: int, bias: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows are taken six or two at a time, and the rest together; a row does not depend on the others."""
    caplog.set_level(logging.INFO)
    layer = KINDS[kind](INPUTS, UNITS, layers, bias=bias, batch_first=batch_first)
    module = Recurrent(layer).eval()
    for rows in (1, 2, 5, 6, 7, 25):
        shape = (rows, 1, INPUTS) if batch_first else (1, rows, INPUTS)
        tensors = given(kind, rows, shape, layers=layers)
        expected, found = both(module, tensors)
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
        with torch.inference_mode():
            last = [
                each.narrow(1 - batch_first if at == 0 else 1, rows - 1, 1)
                for at, each in enumerate(tensors)
            ]
            alone = module(*last)
        assert torch.equal(alone[1], found[1][:, -1:])
    assert is_fused(caplog)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell"])
def test_cells_equal_those_of_torch(
    kind: str, bias: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A cell is a layer whose states have no dimension of layers."""
    caplog.set_level(logging.INFO)
    module = Recurrent(KINDS[kind](INPUTS, UNITS, bias=bias)).eval()
    expected, found = both(module, given(kind, 7, (7, INPUTS)))
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    assert is_fused(caplog)


def test_extreme_numbers_saturate() -> None:
    """Gates far from zero are 0 or 1, and small cells keep their relative precision."""
    layer = nn.LSTM(INPUTS, UNITS)
    expected, found = both(
        Recurrent(layer).eval(),
        [
            torch.full((1, 2, INPUTS), 1e4),
            torch.zeros(1, 2, UNITS),
            torch.full((1, 2, UNITS), 1e-6),
        ],
    )
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert all(torch.isfinite(each).all() for each in found)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.zero_()
    tensors = [torch.zeros(1, 1, INPUTS), torch.zeros(1, 1, UNITS), torch.full((1, 1, UNITS), 1e-6)]
    expected, found = both(Recurrent(copy.deepcopy(layer)).eval(), tensors)
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-5)


def test_torch_computes_what_the_kernel_cannot(caplog: pytest.LogCaptureFixture) -> None:
    """Several steps at once, both directions, other sizes and numbers, and weights of other modules."""
    caplog.set_level(logging.INFO)
    steps = Recurrent(nn.LSTM(INPUTS, UNITS)).eval()
    cases: list[tuple[nn.Module, list[Tensor]]] = [
        (steps, given("LSTM", 3, (4, 3, INPUTS))),
        (
            Recurrent(nn.LSTM(INPUTS, UNITS, bidirectional=True)).eval(),
            given("LSTM", 3, (1, 3, INPUTS), layers=2),
        ),
        (
            Recurrent(nn.GRU(INPUTS, 20)).eval(),
            [torch.randn(1, 3, INPUTS), torch.randn(1, 3, 20)],
        ),
        (
            Recurrent(nn.GRU(INPUTS, UNITS)).double().eval(),
            [each.double() for each in given("GRU", 3, (1, 3, INPUTS))],
        ),
        (
            Recurrent(nn.LSTM(INPUTS, UNITS, proj_size=16)).eval(),
            [torch.randn(1, 3, INPUTS), torch.randn(1, 3, 16), torch.randn(1, 3, UNITS)],
        ),
    ]
    for module, tensors in cases:
        expected, found = both(module, tensors)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
    foreign = Recurrent(nn.LSTM(INPUTS, UNITS)).eval()
    of_inputs, of_hidden, *_ = steps.parameters()
    with torch.inference_mode():
        foreign(*given("LSTM", 3, (1, 3, INPUTS)))
        torch.lstm_cell(  # a part of a weight begins where the weight does
            *(torch.randn(3, 8), [torch.zeros(3, UNITS), torch.zeros(3, UNITS)]),
            *(of_inputs[:, :8], of_hidden),
        )
    assert not is_fused(caplog)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transformed_calls_are_those_of_torch() -> None:
    """Automatic mixed precision computes in another type, and `vmap` has a dimension that the operators do not see."""
    with torch.autocast("cpu", torch.bfloat16):  # without AVX-512, torch has no LSTM for it
        expected, found = both(
            Recurrent(nn.GRU(INPUTS, UNITS)).eval(), given("GRU", 3, (1, 3, INPUTS))
        )
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    module = Recurrent(nn.LSTM(INPUTS, UNITS)).eval()
    fuse_layers(module, CPU)
    input, *states = given("LSTM", 3, (1, 3, INPUTS))
    with torch.inference_mode():
        several = torch.func.vmap(lambda each: module(each, *states)[0])(torch.stack([input] * 2))
        torch.testing.assert_close(several[1], module(input, *states)[0], atol=2e-6, rtol=1e-5)


def test_errors_are_those_of_torch() -> None:
    """States of another shape are refused."""
    module = Recurrent(nn.LSTM(INPUTS, UNITS)).eval()
    fuse_layers(module, CPU)
    with torch.inference_mode(), pytest.raises(RuntimeError, match="Expected hidden"):
        module(torch.randn(1, 3, INPUTS), torch.zeros(1, 2, UNITS), torch.zeros(1, 2, UNITS))


def test_gradients_are_those_of_torch() -> None:
    """A process that serves may train beside."""
    module = Recurrent(nn.LSTM(INPUTS, UNITS))
    stock = copy.deepcopy(module)
    fuse_layers(module, CPU)
    tensors = given("LSTM", 3, (1, 3, INPUTS))
    for each in (module, stock):
        each(*tensors)[0].sum().backward()
    for one, other in zip(module.parameters(), stock.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["TorchScript", "exported"])
def test_files_are_fused_too(form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Programs that were written to a file call the same operators."""
    caplog.set_level(logging.INFO)
    stock = Recurrent(nn.LSTM(INPUTS, UNITS, 2)).eval()
    tensors = given("LSTM", 3, (1, 3, INPUTS), layers=2)
    file = tmp_path / "model"
    if form == "TorchScript":
        torch.jit.trace(stock, tuple(tensors)).save(str(file))
        module = torch.jit.load(file).eval()
    else:
        torch.export.save(torch.export.export(stock, tuple(tensors)), file)
        module = torch.export.load(file).module()
    fuse_layers(module, CPU)
    with torch.inference_mode():
        expected, found = stock(*tensors), list(module(*tensors))
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    assert is_fused(caplog)
