"""The choice of a library for passes of few rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.state_harness import state_settings
from ts_stateful.recurrent.few_rows import choose_library
from ts_stateful.recurrent.program import Program

TENSORS: dict[str, Any] = {
    "inputs": [{"name": "x", "shape": [3]}],
    "outputs": [{"name": "y", "shape": [3]}],
    "states": [{"name": "h", "shape": [3]}],
}
INITIAL = [torch.zeros(1, 3)]


class Timed(nn.Module):
    """A running sum that takes as long, in seconds of its own, as a function of its rows and of oneDNN's part says."""

    def __init__(self, seconds: Callable[[int, bool], float]) -> None:
        super().__init__()
        self.now = 0.0
        self.calls: list[bool] = []
        self._seconds = seconds

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        onednn: Any = torch.backends.mkldnn
        self.calls.append(onednn.enabled)
        assert x.all(), "zeros are no usual inputs"
        self.now += self._seconds(h.shape[0], self.calls[-1])
        return h + x, h + x


def chosen(module: Timed, **fields: Any) -> Program:
    """The program, once its library has been chosen."""
    settings = state_settings(**{**TENSORS, **fields})
    program = Program(module, settings, name="timed", num_parameters=0)
    choose_library(program, settings, INITIAL, lambda: module.now)
    return program


def with_layout(num_rows: int, onednn: bool) -> float:
    """oneDNN has a fixed cost, and is faster for each row."""
    return 0.008 + 0.001 * num_rows if onednn else 0.002 * num_rows


def test_few_rows_go_without_onednn_where_it_is_slower(caplog: pytest.LogCaptureFixture) -> None:
    """Up to the most rows for which that was clearly so; more of them go with it."""
    caplog.set_level("INFO")
    module = Timed(with_layout)
    program = chosen(module)
    assert program.plain_rows == 4
    assert "up to 4 rows go without oneDNN, which takes up to 4.5 times as long" in caplog.text
    module.calls.clear()
    for num_rows in (4, 5):
        program([torch.ones(num_rows, 3)], [torch.ones(num_rows, 3)])
    assert module.calls == [False, True]
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize(
    "seconds",
    [lambda rows, onednn: 0.001, lambda rows, onednn: 0.0011 if onednn else 0.001],
    ids=["equal", "nearly equal"],
)
def test_a_small_difference_changes_nothing(seconds: Callable[[int, bool], float]) -> None:
    """It may be the machine's."""
    assert chosen(Timed(seconds)).plain_rows == 0


def test_no_more_is_timed_than_the_load_has_patience_for() -> None:
    """A pass of a second is timed for one row alone."""
    module = Timed(lambda rows, onednn: 1.0)
    chosen(module)
    assert module.now == 10


def test_nothing_is_timed_beyond_the_rows_of_a_pass() -> None:
    """Nor called."""
    assert chosen(Timed(with_layout), maxRows=2).plain_rows == 2


def test_a_pass_of_fixed_rows_is_timed_as_it_is() -> None:
    """A program may take no other number."""
    fixed: list[int] = []

    def seconds(num_rows: int, onednn: bool) -> float:
        fixed.append(num_rows)
        return with_layout(num_rows, onednn)

    assert chosen(Timed(seconds), maxRows=3, fixedRows=True).plain_rows == 3
    assert set(fixed) == {3}


def test_rows_of_inputs_are_where_the_model_has_them() -> None:
    """While it is timed, and when it is called."""
    module = Timed(with_layout)
    inputs = [{"name": "x", "shape": [1, 3], "rowsDim": 1}]
    settings = state_settings(**{**TENSORS, "inputs": inputs})
    program = Program(lambda x, h: module(x[0], h), settings, name="timed", num_parameters=0)
    choose_library(program, settings, INITIAL, lambda: module.now)
    assert program.plain_rows == 4
    module.calls.clear()
    for num_rows in (4, 5):
        program([torch.ones(1, num_rows, 3)], [torch.ones(num_rows, 3)])
    assert module.calls == [False, True]


def test_a_program_that_cannot_be_timed_is_served_as_it_is() -> None:
    """The choice is no condition."""

    def seconds(num_rows: int, onednn: bool) -> float:
        if num_rows == 4 and not onednn:
            raise ValueError("4")
        return with_layout(num_rows, onednn)

    assert chosen(Timed(seconds)).plain_rows == 0


def test_inputs_of_any_length_are_not_timed() -> None:
    """No usual length is known."""
    module = Timed(with_layout)
    inputs = [{"name": "x", "shape": [-1], "ragged": "group"}]
    assert chosen(module, inputs=inputs).plain_rows == 0
    assert not module.calls
