"""Loading models with recurrent state, and the proof that their sequences are independent."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.support.state_harness import CPU, state_settings
from ts_stateful.config.schema import ConfigError, StateConfig
from ts_stateful.recurrent.program import Program, load_program
from ts_stateful.recurrent.slots import initial_states
from ts_stateful.recurrent.verify import verify_program

TENSORS: dict[str, Any] = {
    "inputs": [{"name": "x", "shape": [3]}],
    "outputs": [{"name": "y", "shape": [3]}],
    "states": [{"name": "h", "shape": [3]}],
}
SOURCE = """
import torch

class Sum(torch.nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), scale))

    def forward(self, x, h):
        h = h + x * self.weight
        return h, h
"""


class Sum(nn.Module):
    """A running sum."""

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        return h + x, h + x


def settings_of(**fields: Any) -> StateConfig:
    """The declaration of a running sum."""
    return state_settings(**{**TENSORS, **fields})


def stepped(program: Program) -> list[float]:
    """What two rows give."""
    (y,), (_,) = program([torch.ones(2, 3)], [torch.ones(2, 3)])
    return [float(value) for value in y.flatten()]


def test_a_class_with_arguments_and_weights(tmp_path: Path) -> None:
    """From a file of the archive."""
    (tmp_path / "net.py").write_text(SOURCE)
    save_file({"weight": torch.full((3,), 5.0)}, tmp_path / "w.safetensors")
    for fields, expected in (
        ({}, 2),
        ({"arguments": {"scale": 2.0}}, 3),
        ({"weights": "w.safetensors"}, 6),
    ):
        program = load_program(settings_of(model="net.py:Sum", **fields), tmp_path, CPU, "sum")
        assert stepped(program) == [expected] * 6
        assert program.num_parameters == 3


def test_torchscript_and_exported_programs(tmp_path: Path) -> None:
    """By the ending of the file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit")
        torch.jit.script(Sum()).save(tmp_path / "sum.pt")
    rows = torch.export.Dim("rows", min=1, max=64)
    example = (torch.ones(2, 3), torch.ones(2, 3))
    exported = torch.export.export(Sum(), example, dynamic_shapes={"x": {0: rows}, "h": {0: rows}})
    torch.export.save(exported, tmp_path / "sum.pt2")
    for name in ("sum.pt", "sum.pt2"):
        settings = settings_of(model=name)
        program = load_program(settings, tmp_path, CPU, "sum")
        assert stepped(program) == [2.0] * 6
        verify_program(program, settings, initial_states(settings.states, tmp_path), CPU)


def test_a_program_finds_its_gpu_as_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of several engines has another one than the first, and a program's own kernels and tensors are to be there."""
    current: list[torch.device] = []
    (tmp_path / "net.py").write_text(SOURCE)

    def moved(module: nn.Module, device: torch.device) -> nn.Module:
        assert current == [device]
        return module

    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(nn.Module, "to", moved)
    load_program(settings_of(model="net.py:Sum"), tmp_path, torch.device("cuda:1"), "sum")
    assert current == [torch.device("cuda:1")]


class Padded(nn.Module):
    """A running sum that makes tensors of its own, and converts one to what it is."""

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        h = h + x.to(torch.float32) + torch.zeros(3)
        return h, h


def test_an_exported_program_can_be_moved(tmp_path: Path) -> None:
    """Whatever it was exported on: the device is part of its calls."""
    example = (torch.ones(2, 3), torch.ones(2, 3))
    torch.export.save(torch.export.export(Padded(), example), tmp_path / "sum.pt2")
    program = load_program(settings_of(model="sum.pt2"), tmp_path, torch.device("meta"), "sum")
    tensors = [tensor.to("meta") for tensor in example]
    made = program(tensors[:1], tensors[1:])
    assert [tensor.device.type for tensors in made for tensor in tensors] == ["meta", "meta"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model": "none.pt"}, "no file none.pt"),
        ({"model": "net.py:Product"}, "defines no torch.nn.Module Product"),
        ({"model": "net.py:torch"}, "defines no torch.nn.Module torch"),
        ({"model": "net.py:Sum", "arguments": {"size": 1}}, "size"),
        ({"model": "net.py:Sum", "weights": "none.safetensors"}, "none.safetensors"),
        (
            {"model": "net.py:Sum", "weights": "pickle.bin"},
            r"handler.weights: pickle.bin .*save_file",
        ),
        ({"model": "bad.pt"}, "cannot be loaded"),
        ({"model": "bad.pt", "weights": "w"}, "only `file.py:Class`"),
    ],
)
def test_what_cannot_be_loaded_is_refused(
    tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    """With the reason."""
    (tmp_path / "net.py").write_text(SOURCE)
    (tmp_path / "bad.pt").write_text("no archive")
    torch.save({"weight": torch.ones(3)}, tmp_path / "pickle.bin")
    with pytest.raises(ConfigError, match=says):
        load_program(settings_of(**fields), tmp_path, CPU, "sum")


def proved(function: Any, tmp_path: Path, **fields: Any) -> None:
    """Tries a function as a model."""
    settings = settings_of(**fields)
    program = Program(function, settings, name="model", num_parameters=0)
    verify_program(program, settings, initial_states(settings.states, tmp_path), CPU)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x, h: (x - x.mean(0), h), "y of one sequence depends on another"),
        (lambda x, h: (x, h + x.sum(0)), "h of one sequence depends on another"),
        (lambda x, h: (x + torch.randn(3), h), r"differ from call to call \(y\)"),
        (lambda x, h: (x, h + torch.randn(3)), r"differ from call to call \(h\)"),
        (lambda x, h: (torch.cat([x, x]), h), r"y is torch.float32 of \[2, 3\] for 1 rows"),
        (lambda x, h: x, r"returns 1 tensors; return one flat tuple .*: \(y, h\)"),
        (lambda x, h: {"y": x, "h": h}, "returns a dict; return one flat tuple"),
        (lambda x, h: None, "returns a NoneType; return one"),
        (lambda x, h: (x, (h,)), "returns a tuple as result 2; return one"),
        (lambda x, h: (float(x.sum()), h), "returns a float as result 1; return one"),
        (lambda x, h: (x, h.to_sparse()), "returns a torch.sparse_coo tensor as result 2; return"),
        (lambda x, h: (x[:, :2], h), r"y is torch.float32 of \[1, 2\]"),
        (lambda x, h: (x, h.double()), "h is torch.float64"),
        (lambda x, h: (x, h[0]), "h is torch.float32"),
        (lambda x: (x, x), "positional argument"),
    ],
)
def test_a_program_that_does_something_else_is_refused(
    tmp_path: Path, function: Any, says: str
) -> None:
    """Before it serves anybody."""
    with pytest.raises(ConfigError, match=says):
        proved(function, tmp_path)


class Buffered(nn.Module):
    """A running sum whose results are views of its own memory; they have gradients."""

    def __init__(self, *, mean: bool) -> None:
        super().__init__()
        self.room = nn.Parameter(torch.zeros(8, 3))
        self.mean = mean

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        h = h + x
        y = self.room[: len(x)]
        y.copy_(h.mean(0) if self.mean else h)
        return y, h


def test_results_may_lie_in_memory_of_the_model(tmp_path: Path) -> None:
    """A step is compared with what it gave, not with what the next one wrote there."""
    proved(Buffered(mean=False), tmp_path)
    with pytest.raises(ConfigError, match="depends on another"):
        proved(Buffered(mean=True), tmp_path)


def test_inputs_are_above_zero(tmp_path: Path) -> None:
    """As most that is measured: a model may take their logarithm, and refuse what has none."""

    def run(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        assert (x > 0).all()
        return h + x.log(), h + x.log()

    proved(run, tmp_path)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_program_of_one_row_is_called_with_one(fixed: bool, tmp_path: Path) -> None:
    """No pass has more rows than `maxRows`, here neither."""

    def run(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        assert len(x) == len(h) == 1
        return x + h, x + h

    proved(run, tmp_path, maxRows=1, fixedRows=fixed)


def test_states_that_may_differ(tmp_path: Path) -> None:
    """Rounded ones, by the last bit of a float, and room after padded rows, if no output shows it."""

    def rounded(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return x, h + len(x)

    proved(rounded, tmp_path, states=[{"name": "h", "shape": [3], "datatype": "INT8"}])

    def written_over(x: Tensor, lengths: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return lengths[:, None].expand(-1, 3).float(), h + x.shape[1]

    inputs = [
        {"name": "x", "shape": [-1], "ragged": "pad"},
        {"name": "lengths", "datatype": "INT64", "lengthsOf": "x"},
    ]
    proved(written_over, tmp_path, inputs=inputs)


def test_half_precision_may_differ_by_as_much_as_it_does(tmp_path: Path) -> None:
    """A kernel for one row computes it in another way than one for two."""

    def coarse(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return x * (1 + 0.01 * (len(x) - 1)), h

    with pytest.raises(ConfigError, match="depends on another"):
        proved(coarse, tmp_path)
    halves = {
        "inputs": [{"name": "x", "shape": [3], "datatype": "FP16"}],
        "outputs": [{"name": "y", "shape": [3], "datatype": "FP16"}],
    }
    proved(coarse, tmp_path, **halves)


def test_padding_must_not_be_seen(tmp_path: Path) -> None:
    """A model that cannot tell padding from data must not be padded."""
    inputs = [{"name": "x", "shape": [-1, 3], "ragged": "pad", "padding": 1}]
    with pytest.raises(ConfigError, match="lengthsOf or maskOf"):
        proved(lambda x, h: (h + x.sum(1), h + x.sum(1)), tmp_path, inputs=inputs)
    told = [*inputs, {"name": "mask", "datatype": "BOOL", "maskOf": "x"}]

    def masked(x: Tensor, mask: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = h + (x * mask[..., None]).sum(1)
        return h, h

    proved(masked, tmp_path, inputs=told)


@pytest.mark.parametrize("most", [1, 2, 3, 5])
@pytest.mark.parametrize("ragged", ["pad", "group"])
def test_lengths_are_within_the_bound_of_the_input(ragged: str, most: int, tmp_path: Path) -> None:
    """A model that takes no more is tried with what it takes; padded rows differ in length, if they can."""
    inputs = [{"name": "x", "shape": [-1], "ragged": ragged, "max": most}]

    def mixed(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        assert x.shape[1] <= most
        return (x + x.sum(0))[:, :1].expand(-1, 3), h

    with pytest.raises(ConfigError, match="depends on another"):
        proved(mixed, tmp_path, inputs=inputs)

    def padded(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        assert x.shape[1] <= most
        return h + x.shape[1], h

    if ragged == "pad" and most > 1:
        with pytest.raises(ConfigError, match="lengthsOf or maskOf"):
            proved(padded, tmp_path, inputs=inputs)
    else:
        proved(padded, tmp_path, inputs=inputs)


def test_lengths_are_tried_until_one_is_taken(tmp_path: Path) -> None:
    """A model may want 160 samples at a time; one that takes nothing is served all the same, with a warning."""

    def frames(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        y = x.view(len(x), -1, 160).mean((1, 2))
        return (y + h[:, 0])[:, None].expand(-1, 3), h

    inputs = [{"name": "x", "shape": [-1]}]
    proved(frames, tmp_path, inputs=inputs)

    def never(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return x.view(len(x), 7, 11)[..., 0], h

    proved(never, tmp_path, inputs=inputs)


def test_initial_states(tmp_path: Path) -> None:
    """A constant, or a tensor of a file, which must fit."""
    save_file({"h": torch.arange(3.0), "c": torch.ones(2, 4)}, tmp_path / "s.safetensors")
    good = [
        {"name": "h", "shape": [3], "initialFile": "s.safetensors"},
        {"name": "c", "shape": [-1, 4], "max": 5, "rowsDim": 1, "initialFile": "s.safetensors"},
        {"name": "d", "shape": [2], "initial": 7},
        {"name": "e", "shape": [-1, 2], "max": 3},
    ]
    made = initial_states(settings_of(states=good).states, tmp_path)
    assert [list(tensor.shape) for tensor in made] == [[1, 3], [2, 1, 4], [1, 2], [1, 0, 2]]
    assert made[2].tolist() == [[7, 7]]
    for fields in ({"shape": [4]}, {"datatype": "FP64", "shape": [3]}, {"shape": [3, 1]}):
        bad = {"name": "h", "initialFile": "s.safetensors", **fields}
        with pytest.raises(ConfigError, match="declared are"):
            initial_states(settings_of(states=[bad]).states, tmp_path)
    for name, file in (("x", "s.safetensors"), ("h", "none.safetensors")):
        bad = {"name": name, "shape": [3], "initialFile": file}
        with pytest.raises(ConfigError, match="initialFile"):
            initial_states(settings_of(states=[bad]).states, tmp_path)
