"""What a model with recurrent state gets, and what becomes of what it gives: lengths, padding, growth, controls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.state_harness import StateHarness, state_settings
from ts_stateful.protocol.requests import InputTensor, Step


def step(session_id: str, name: str, data: Any, **fields: Any) -> Step:
    """A step with one input."""
    return Step(session_id=session_id, inputs=(InputTensor(name, data),), **fields)


def output(answer: dict[str, Any], name: str) -> Any:
    """The elements of an output."""
    return next(o["data"] for o in answer["outputs"] if o["name"] == name)


def together(harness: StateHarness, commands: list[Step]) -> list[dict[str, Any]]:
    """The answers to requests that wait at the same time."""
    asked = [harness.submit(command) for command in commands]
    harness.run()
    return [harness.answer(request_id) for request_id in asked]


LENGTHS_OF_X = {"name": "lengths", "datatype": "INT64", "lengthsOf": "x"}
MASK_OF_X = {"name": "mask", "datatype": "BOOL", "maskOf": "x"}


def test_inputs_of_different_lengths_run_in_groups() -> None:
    """One pass for each length, if nothing else is declared."""
    settings = state_settings(
        inputs=[{"name": "x", "shape": [-1]}],
        outputs=[{"name": "y", "shape": [-1]}],
        states=[{"name": "h", "shape": []}],
    )
    harness = StateHarness(lambda x, h: (x.cumsum(1) + h[:, None], h + x.sum(1)), settings)
    data = {"a": [1.0, 2.0], "b": [3.0], "c": [4.0, 5.0]}
    answers = together(harness, [step(name, "x", x) for name, x in data.items()])
    assert [output(a, "y") for a in answers] == [[1, 3], [3], [4, 9]]
    assert harness.num_calls == 2
    answers = together(harness, [step(name, "x", [1.0]) for name in data])
    assert [output(a, "y") for a in answers] == [[4], [4], [10]]
    assert harness.num_calls == 3


@pytest.mark.parametrize("told", [LENGTHS_OF_X, MASK_OF_X])
def test_padded_inputs_run_in_one_pass(told: dict[str, str]) -> None:
    """The model is told what is padding, and outputs are cut to their row's length."""

    def run(x: Tensor, told: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        mask = told if told.dtype is torch.bool else torch.arange(x.shape[1]) < told[:, None]
        assert (x[~mask] == 9).all()
        x = x * mask
        return x.cumsum(1) + h[:, None], h + x.sum(1)

    settings = state_settings(
        inputs=[{"name": "x", "shape": [-1], "ragged": "pad", "padding": 9}, told],
        outputs=[{"name": "y", "shape": [-1], "lengthsFrom": "x"}],
        states=[{"name": "h", "shape": []}],
    )
    harness = StateHarness(run, settings)
    data = {"a": [1.0, 2.0], "b": [3.0], "c": [4.0, 5.0, 6.0]}
    answers = together(harness, [step(name, "x", x) for name, x in data.items()])
    assert [output(a, "y") for a in answers] == [[1, 3], [3], [4, 9, 15]]
    assert harness.num_calls == 1


def test_an_output_is_cut_by_the_input_of_its_own_name() -> None:
    """An output of that name holds no lengths, unless its shape is []."""
    settings = state_settings(
        inputs=[{"name": "x", "shape": [-1], "ragged": "pad"}, LENGTHS_OF_X],
        outputs=[{"name": "x", "shape": [-1], "lengthsFrom": "x"}],
        states=[{"name": "h", "shape": []}],
    )
    harness = StateHarness(lambda x, lengths, h: (x + 1, h), settings)
    answers = together(harness, [step("a", "x", [1.0, 2.0]), step("b", "x", [3.0])])
    assert [output(answer, "x") for answer in answers] == [[2, 3], [4]]


@pytest.mark.parametrize("told", ["y", "seen"])
@pytest.mark.parametrize("length", [-1, 2])
def test_a_length_that_is_none_is_a_defect_of_its_own_row(told: str, length: int) -> None:
    """Beyond the end of what the model gave there is nothing, or what was another sequence's; who runs beside it goes on."""

    def run(x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n = torch.where(x == 13, length, 1)
        return x[:, None], n, x[:, None]

    lengths = {"lengthsFrom": "n"}
    settings = state_settings(
        inputs=[{"name": "x", "shape": []}],
        outputs=[
            {"name": "y", "shape": [-1], **(lengths if told == "y" else {})},
            {"name": "n", "datatype": "INT64", "shape": [], "hidden": True},
        ],
        states=[
            {"name": "seen", "shape": [-1], "max": 3, **(lengths if told == "seen" else {})},
        ],
    )
    harness = StateHarness(run, settings)
    answers = together(harness, [step("a", "x", 13.0), step("b", "x", 1.0)])
    assert answers[0]["error"]["code"] == "internal"
    assert output(answers[1], "y") == [1]


def growing(**fields: Any) -> Any:
    """A model that keeps all it has seen, and tells the sum."""
    return state_settings(
        inputs=[{"name": "x", "shape": [1]}],
        outputs=[{"name": "y", "shape": []}, {"name": "n", "datatype": "INT64", "hidden": True}],
        states=[{"name": "seen", "shape": [-1], "max": 3, **fields}],
    )


def keep(x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What has been seen, with this behind it."""
    seen = torch.cat([seen, x], 1)
    return seen.sum(1), torch.full((len(x),), seen.shape[1]), seen


def test_a_state_grows_up_to_its_bound() -> None:
    """Then steps are refused, and the state stays as it was."""
    harness = StateHarness(keep, growing())
    assert [output(harness.ask(step("a", "x", [n])), "y") for n in (1, 2, 3)] == [[1], [3], [6]]
    refused = harness.submit(step("a", "x", [4]))
    other = harness.submit(step("b", "x", [4]))
    harness.run()
    assert harness.code(refused) == "context_too_long"
    assert "seen" in harness.answer(refused)["error"]["message"]
    assert output(harness.answer(other), "y") == [4]
    assert harness.ask(step("a", "x", [9], start=True))["turn"] == 1


def test_a_full_state_can_drop_its_beginning() -> None:
    """As a sliding window."""
    harness = StateHarness(keep, growing(whenFull="dropOldest"))
    sums = [output(harness.ask(step("a", "x", [n])), "y") for n in (1, 2, 3, 4, 5)]
    assert sums == [[1], [3], [6], [1 + 2 + 3 + 4], [2 + 3 + 4 + 5]]


def test_states_of_different_lengths_run_in_groups_or_padded() -> None:
    """Padded ones end in zeros, whatever lay there before, and the model tells the new lengths."""

    def packed(x: Tensor, lengths: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        room = torch.cat([seen, torch.zeros(len(x), 1)], 1)
        assert (room[torch.arange(room.shape[1]) >= lengths[:, None]] == 0).all()
        room = room.scatter(1, lengths[:, None], x)
        return room.sum(1), lengths + 1, room

    padded = state_settings(
        inputs=[
            {"name": "x", "shape": [1]},
            {"name": "lengths", "datatype": "INT64", "lengthsOf": "seen"},
        ],
        outputs=[{"name": "y"}, {"name": "n", "datatype": "INT64", "hidden": True}],
        states=[{"name": "seen", "shape": [-1], "max": 3, "ragged": "pad", "lengthsFrom": "n"}],
    )
    for module, settings, num_calls in ((keep, growing(), 3), (packed, padded, 2)):
        harness = StateHarness(module, settings)
        harness.ask(step("a", "x", [100]))
        answers = together(harness, [step("a", "x", [1]), step("b", "x", [2])])
        assert [output(a, "y") for a in answers] == [[101], [2]]
        assert harness.num_calls == num_calls


def test_rows_can_be_anywhere() -> None:
    """`rowsDim` is where the model has them, as nn.LSTM has those of its states in dimension 1."""
    settings = state_settings(
        inputs=[{"name": "x", "shape": [-1, 2]}],
        outputs=[{"name": "y", "shape": [-1, 4]}],
        states=[
            {"name": "h", "shape": [3, 4], "rowsDim": 1},
            {"name": "c", "shape": [3, 4], "rowsDim": 1},
        ],
    )
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(2, 4, num_layers=3, batch_first=True)

    def run(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = lstm(x, (h, c))
        return y, h, c

    harness = StateHarness(run, settings)
    streams = {name: torch.randn(6, 2) for name in "abc"}
    pieces: dict[str, list[float]] = {name: [] for name in streams}
    for at in range(0, 6, 2):
        commands = [step(n, "x", x[at : at + 2].tolist()) for n, x in streams.items()]
        for name, answer in zip(streams, together(harness, commands), strict=True):
            pieces[name] += output(answer, "y")
    assert harness.num_calls == 3
    for name, x in streams.items():
        torch.testing.assert_close(
            torch.tensor(pieces[name]), lstm(x[None])[0].detach().flatten(), rtol=1e-5, atol=1e-6
        )


def test_the_model_is_told_where_a_sequence_stands() -> None:
    """START, END and READY, in any shape and datatype."""
    seen: list[list[list[float]]] = []

    def run(x: Tensor, start: Tensor, end: Tensor, ready: Tensor, h: Tensor) -> Any:
        seen.append([start.flatten().tolist(), end.tolist(), ready.flatten().tolist()])
        return x, h

    settings = state_settings(
        inputs=[
            {"name": "x", "shape": [1]},
            {"name": "start", "shape": [1, 1], "control": "start"},
            {"name": "end", "datatype": "BOOL", "control": "end"},
            {"name": "ready", "datatype": "INT32", "shape": [1], "control": "ready"},
        ],
        outputs=[{"name": "y", "shape": [1]}],
        states=[{"name": "h", "shape": [1]}],
        maxRows=4,
        fixedRows=True,
    )
    harness = StateHarness(run, settings)
    together(harness, [step("a", "x", [1]), step("b", "x", [1])])
    together(harness, [step("a", "x", [1], end=True), step("c", "x", [1])])
    no, yes = False, True
    assert seen == [
        [[1, 1, 0, 0], [no, no, no, no], [1, 1, 0, 0]],
        [[0, 1, 0, 0], [yes, no, no, no], [1, 1, 0, 0]],
    ]


@pytest.mark.parametrize("datatype", ["BOOL", "FP32"])
def test_controls_can_be_changed_in_place(datatype: str) -> None:
    """Each element on its own."""

    def run(x: Tensor, start: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = h + x * start.logical_not_()[:, :1]
        return h, h

    settings = state_settings(
        inputs=[
            {"name": "x", "shape": [1]},
            {"name": "start", "datatype": datatype, "shape": [2], "control": "start"},
        ],
        outputs=[{"name": "y", "shape": [1]}],
        states=[{"name": "h", "shape": [1]}],
    )
    harness = StateHarness(run, settings)
    assert [output(harness.ask(step("a", "x", [1])), "y") for _ in range(3)] == [[0], [1], [2]]


def test_a_sequence_begins_with_its_initial_state() -> None:
    """In whatever slot another one has been."""
    settings = state_settings(
        inputs=[{"name": "x", "shape": [1]}],
        outputs=[{"name": "y", "shape": [1]}],
        states=[{"name": "h", "shape": [1]}],
    )
    initial = [torch.tensor([[100.0]])]
    harness = StateHarness(lambda x, h: (x + h, x + h), settings, initial=initial, max_slots=1)
    for name in ("a", "b"):
        assert output(harness.ask(step(name, "x", [1])), "y") == [101]
        assert output(harness.ask(step(name, "x", [1])), "y") == [102]


def test_what_the_model_gives_must_be_as_declared() -> None:
    """Else the step has failed, and nobody's state has changed."""
    settings = state_settings(
        inputs=[{"name": "x", "shape": [1]}],
        outputs=[{"name": "y", "shape": [1]}],
        states=[{"name": "h", "shape": [1]}],
    )

    def run(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return x, (h + 1).double() if bool((x > 1).any()) else h + 1

    harness = StateHarness(run, settings)
    harness.ask(step("a", "x", [1]))
    bad = harness.submit(step("a", "x", [2]))
    harness.run()
    assert harness.code(bad) == "internal"
    assert harness.ask(step("a", "x", [1]))["turn"] == 2
