"""Sequences from the worker's side: ids whose next step begins a sequence, and ids that have lost their states."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.worker import Worker
from ts_stateful.config.schema import load_config
from ts_stateful.protocol.declarations import Input
from ts_stateful.protocol.requests import Close, InputTensor, Open, Step
from ts_stateful.protocol.tensors import read_inputs

Start = Callable[..., Worker]
SOURCE = """
import torch

class Counter(torch.nn.Module):
    def forward(self, number, total):
        total = total + number
        return total, total
"""
HANDLER: dict[str, Any] = {
    "model": "counter.py:Counter",
    "inputs": [{"name": "number", "datatype": "INT64", "shape": [1]}],
    "outputs": [{"name": "sum", "datatype": "INT64", "shape": [1]}],
    "states": [{"name": "total", "datatype": "INT64", "shape": [1]}],
}


@pytest.fixture
def worker(start: Start, tmp_path: Path) -> Worker:
    """A worker with one engine that counts, for two sessions."""
    (tmp_path / "counter.py").write_text(SOURCE)
    return start(model_dir=tmp_path, max_sessions=2, **HANDLER)


@cache
def declared() -> tuple[Input, ...]:
    state = load_config({"handler": HANDLER}).state
    assert state is not None
    return state.inputs


def step(worker: Worker, number: int, name: str, **fields: Any) -> int | str:
    """Return the sum after a step, or the code of the error."""
    return answer_of(worker, send(worker, number, name, **fields))


def send(worker: Worker, number: int, name: str, **fields: Any) -> str:
    """Submit a step; return the request's id."""
    elements = read_inputs(declared(), [InputTensor("number", [number])], {})
    return worker.submit(
        Step(session_id=name, **fields),
        attachments=tuple(tensor.data for tensor in elements),
        shapes=tuple(tensor.shape for tensor in elements),
        creates_session=fields.get("start", False),
    )


def answer_of(worker: Worker, request: str) -> int | str:
    answer = worker.wait(request)
    return (
        str(answer["error"]["code"]) if "error" in answer else int(answer["outputs"][0]["data"][0])
    )


def test_a_refused_sequence_begins_when_there_is_room(worker: Worker) -> None:
    """The refusal does not make its id known."""
    for name in "ab":
        worker.ask(Open(session_id=name), creates_session=True)
    assert [step(worker, 1, "c") for _ in range(2)] == ["too_many_sessions"] * 2
    worker.ask(Close(session_id="a"))
    assert step(worker, 1, "c") == 1


def test_only_an_ended_sequence_begins_again_after_a_crash(worker: Worker) -> None:
    """A sequence that lost its states is not found until a START."""
    assert step(worker, 1, "ended", end=True) == 1
    assert step(worker, 1, "open") == 1
    worker.kill(signal.SIGKILL)
    assert step(worker, 5, "ended") == 5
    assert step(worker, 5, "open") == "session_not_found"
    assert step(worker, 7, "open", start=True) == 7
    assert step(worker, 1, "open") == 8


def test_the_next_sequence_of_an_id_is_known_before_the_end_of_one_is_answered(
    worker: Worker,
) -> None:
    """It is not begun again, after a crash or at another engine."""
    steps = [(1, {}), (2, {"end": True}), (10, {}), (20, {})]
    sent = [send(worker, number, "a", **fields) for number, fields in steps]
    assert [answer_of(worker, request) for request in sent] == [1, 3, 10, 30]
    worker.kill(signal.SIGKILL)
    assert step(worker, 5, "a") == "session_not_found"
