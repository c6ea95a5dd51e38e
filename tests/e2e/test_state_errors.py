"""What a model, a client or a process can do wrong, and that nobody else notices."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
from typing import Any

import httpx
import pytest

from tests.e2e.speak import HEADER, error_of, eventually
from tests.e2e.state_server import StateModels
from tests.e2e.steps import END, START, Document, Line, Lines, number, post, sum_of, value
from tests.support.state_models.ledger import HOLD, UNLUCKY

MOST = 12  # numbers that the ledger remembers of a sequence


@pytest.fixture
def line(lines: Lines, way: str) -> Line:
    """A line to a sequence of its own."""
    return lines(way)


def given(**tensor: Any) -> Document:
    """A step with one tensor, made of these keys."""
    return {"inputs": [{"name": "number", **tensor}]}


# What is refused before anything runs, and the field that the answer names.
REFUSED: dict[str, tuple[Document, str]] = {
    "two rows": (given(data=[1, 2]), "inputs[0]."),
    "two rows, said so": (given(data=[[1], [2]], shape=[2, 1]), "inputs[0].shape"),
    "no element": (given(data=[]), "inputs[0]."),
    "a fraction": (given(data=[1.5]), "inputs[0].data"),
    "text": (given(data=["1"]), "inputs[0].data"),
    "a boolean": (given(data=[True]), "inputs[0].data"),
    "beyond 64 bits": (given(data=[2**63]), "inputs[0].data"),
    "another datatype": (given(data=[1], datatype="FP32"), "inputs[0].datatype"),
    "another name": ({"inputs": [{"name": "digit", "data": [1]}]}, "inputs[0].name"),
    "what the server tells": ({"inputs": [{"name": "start", "data": [True]}]}, "inputs[0].name"),
    "twice": ({"inputs": [{"name": "number", "data": [1]}] * 2}, "inputs[1].name"),
    "nothing": ({"type": "step"}, "inputs"),
    "an unknown field": (number(1, begin=True), "begin"),
    "a prompt": ({"prompt": "1"}, "type"),
    "rewind": ({"type": "rewind", "to_turn": 0}, "type"),
    "cancel": ({"type": "cancel"}, "type"),
    "a system prompt": ({"type": "open", "system": "count"}, "system"),
    "another sequence": (number(1, session_id="another"), "session_id"),
    "another sequence, as Triton says it": (
        number(1, parameters={"sequence_id": "another"}),
        "parameters.sequence_id",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_step_is_refused(lines: Lines, what: str) -> None:
    """By name, and the sequence stands where it was."""
    document, field = REFUSED[what]
    line = lines("http")
    assert sum_of(line.ask(number(5))) == 5
    refused = line.ask(document)
    assert error_of(refused) in (("invalid_request", 400), ("session_id_mismatch", 400))
    assert refused["error"]["field"].startswith(field)
    assert sum_of(line.ask(number(6))) == 11


def test_a_step_that_fails_leaves_the_state_as_it_was(line: Line) -> None:
    """The model raised: the client learns no more than that, and the sequence goes on."""
    assert sum_of(line.ask(number(1))) == 1
    for _ in range(2):
        failed = line.ask(number(UNLUCKY, **END))
        assert error_of(failed) == ("internal", 500)
        assert "bad luck" not in failed["error"]["message"]
    answer = line.ask(number(2))
    assert (sum_of(answer), answer["turn"], value(answer, "numbers")) == (3, 2, [1, 2])


def test_steps_sent_ahead_go_on_behind_one_that_fails(lines: Lines) -> None:
    """On a stream, where they were on their way already; END is not said by a step that fails."""
    line = lines.stream()
    for step in (number(1), number(UNLUCKY, **END), number(2), number(UNLUCKY), number(3, **END)):
        line.send(step)
    answers = [line.receive() for _ in range(5)]
    assert [sum_of(answers[index]) for index in (0, 2, 4)] == [1, 3, 6]
    assert [error_of(answers[index]) for index in (1, 3)] == [("internal", 500)] * 2
    assert answers[4]["turn"] == 3


def test_a_step_runs_although_its_client_has_gone(state_models: StateModels, lines: Lines) -> None:
    """The next ones of its sequence build on it; with its number it can be asked for again."""
    line, server = lines("http"), state_models.server
    state_models.held.unlink(missing_ok=True)
    state_models.gate.touch()
    connection = http.client.HTTPConnection("127.0.0.1", server.ports.http)
    headers = {HEADER: line.session, "Content-Type": "application/json"}
    connection.request("POST", "/predictions/ledger", json.dumps(number(HOLD)).encode(), headers)
    eventually(state_models.held.exists)
    connection.close()
    state_models.gate.unlink()
    assert sum_of(line.ask(number(5))) == HOLD + 5
    assert line.ask({"type": "info"})["turns"] == 2


def test_a_sequence_whose_beginning_fails_has_none(line: Line) -> None:
    """Steps that were meant to follow it are refused, however late they come, until one says START."""
    for beginning in (number(UNLUCKY), number(UNLUCKY, **START)):
        assert error_of(line.ask(beginning)) == ("internal", 500)
        for _ in range(2):
            assert error_of(line.ask(number(2))) == ("session_not_found", 404)
        answer = line.ask(number(2, **START))
        assert (sum_of(answer), value(answer, "flags")) == (2, [True, False])
        assert sum_of(line.ask(number(3, **END))) == 5


def test_a_state_that_is_full_refuses_the_step(line: Line) -> None:
    """And stays as it was, the states that do not grow as well."""
    for n in range(1, MOST + 1):
        sum_of(line.ask(number(1, turn=n)))
    for _ in range(2):
        refused = line.ask(number(1))
        assert error_of(refused) == ("context_too_long", 413)
    info = line.ask({"type": "info"})
    assert info["turns"] == MOST
    assert sum_of(line.ask(number(1, **START))) == 1


def test_a_killed_engine_says_what_was_lost(state_models: StateModels, lines: Lines) -> None:
    """States are nowhere else: the step after the last one is refused until somebody begins anew."""
    line = lines("http")
    assert sum_of(line.ask(number(5))) == 5
    state_models.kill_engine("ledger")
    lost = line.ask(number(6))
    assert error_of(lost) == ("session_not_found", 404)
    assert sum_of(lines("http").ask(number(7))) == 7
    assert error_of(line.ask(number(6)))[0] == "session_not_found"
    assert sum_of(line.ask(number(6, **START))) == 6
    assert sum_of(line.ask(number(1))) == 7


def test_a_killed_worker_loses_nothing(state_models: StateModels, lines: Lines) -> None:
    """The next one finds the engine and its sequences."""
    line = lines("http")
    assert sum_of(line.ask(number(5))) == 5
    worker = state_models.worker_pid("ledger")
    os.kill(worker, signal.SIGKILL)

    def is_back() -> bool:
        options: dict[str, Any] = {"session": line.session, "timeout": 5.0}
        with contextlib.suppress(httpx.TransportError):  # TorchServe may forget a request meanwhile
            return post(state_models.server, "ledger", {"type": "info"}, **options).is_success
        return False

    eventually(is_back)
    assert state_models.worker_pid("ledger") != worker
    assert sum_of(line.ask(number(6))) == 11
