"""The number of the next step and the sequence's end after a lost step or answer."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.fake_client import FakeTime
from ts_stateful.client import DeadlineExceeded, ServerUnreachable
from ts_stateful.client.calls import Calls
from ts_stateful.client.documents import encode
from ts_stateful.client.steps import StepReply, Steps
from ts_stateful.client.transports.transport import Events, Transport
from ts_stateful.protocol.errors import InvalidRequest, SessionNotFound, StatefulError, TurnGap
from ts_stateful.protocol.requests import Command, Prompt


class Line(Transport):
    """A transport and its pipeline to a server with one sequence. `fails` replace the next answers."""

    max_body_bytes = 1000

    def __init__(self) -> None:
        self.num_steps: int | None = None  # None: there is no sequence
        self.fails: deque[Exception | type[BaseException] | None] = deque()
        self.kinds: list[str] = []
        self.inputs: list[Any] = []  # of the steps that were done
        self.has_streams = True
        self._answers: deque[bytes] = deque()

    def call(
        self, command: Command, timeout_s: float, raw: Mapping[str, bytes] | None = None
    ) -> bytes:
        """See `Transport`."""
        request = json.loads(encode(command))
        self.kinds.append(request["type"])
        failure = self.fails.popleft() if self.fails else None
        try:
            if isinstance(failure, StatefulError):
                raise failure
            answer = self._answer(request)
        except StatefulError as error:
            return json.dumps(error.to_body()).encode()
        if failure is not None:  # the answer is lost
            raise failure
        return json.dumps(answer).encode()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["type"] == "close":
            if self.num_steps is None:
                raise SessionNotFound("no such session")
            self.num_steps = None
            return {"session_id": "s", "closed": True}
        if request["type"] == "batch":
            return {"answers": [self._answer(step) for step in request["requests"]]}
        is_replayed = request["turn"] == self.num_steps
        if not is_replayed and request["turn"] != (self.num_steps or 0) + 1:
            raise TurnGap("that is not the next step")
        self.num_steps = request["turn"]
        if not is_replayed:
            self.inputs.append(request["inputs"][0]["data"] if request.get("inputs") else None)
        return {
            "model_name": "m",
            "session_id": request["session_id"],
            "turn": self.num_steps,
            "outputs": [],
            "replayed": is_replayed,
        }

    def pipeline(self, session_id: str, timeout_s: float) -> Line | None:
        """See `Transport`."""
        return self if self.has_streams else None

    def send(self, command: Command, raw: Mapping[str, bytes]) -> None:
        """See `Pipeline`."""
        self._answers.append(self.call(command, 1.0, raw))

    def receive(self, timeout_s: float) -> bytes:
        """See `Pipeline`."""
        return self._answers.popleft()

    def stream(self, command: Prompt, timeout_s: float, stall_s: float) -> Events:
        """See `Transport`."""
        raise NotImplementedError

    def close(self) -> None:
        """See `Transport`."""


@pytest.fixture
def line() -> Line:
    """Return the server."""
    return Line()


@pytest.fixture
def steps(line: Line) -> Steps:
    """Return a sequence that has not begun."""
    return Steps(Calls(line, 5.0, FakeTime().policy(max_retries=0)), "s", num_steps=0)


@pytest.mark.parametrize("lost", [DeadlineExceeded("late"), KeyboardInterrupt])
def test_a_sequence_whose_first_answer_was_lost_is_ended(
    line: Line, steps: Steps, lost: Exception | type[BaseException]
) -> None:
    """The server has the sequence and would keep it until it is idle for long enough."""
    line.fails.append(lost)
    with pytest.raises((DeadlineExceeded, KeyboardInterrupt)), steps:
        steps.step({})
    assert (line.kinds, line.num_steps) == (["step", "close"], None)


def test_a_sequence_of_which_nothing_has_arrived_is_closed_enough(line: Line, steps: Steps) -> None:
    """After a lost first step `close` asks for an end; after a refused one it sends nothing."""
    line.fails.append(InvalidRequest("no such input"))
    with pytest.raises(InvalidRequest):
        steps.step({})
    steps.close()
    assert line.kinds == ["step"]
    line.fails.append(DeadlineExceeded("late"))
    with pytest.raises(DeadlineExceeded):
        steps.step({})
    line.num_steps = None
    steps.close()
    assert line.kinds == ["step", "step", "close"]


def test_a_close_that_failed_can_be_repeated(line: Line, steps: Steps) -> None:
    """A failed close has not ended the sequence."""
    steps.step({})
    line.fails.append(ServerUnreachable("broken"))
    with pytest.raises(ServerUnreachable):
        steps.close()
    line.num_steps = 1  # that request was lost, too
    for _ in range(2):
        steps.close()
    assert line.kinds == ["step", "close", "close"]


@pytest.mark.parametrize("batch", [False, True], ids=["step", "step_all"])
@pytest.mark.parametrize("lost", [DeadlineExceeded("late"), KeyboardInterrupt])
def test_a_step_whose_answer_was_lost_counts_once(
    line: Line, steps: Steps, lost: Exception | type[BaseException], batch: bool
) -> None:
    """Sent again it has its answer; before another one it is sent again, also if its list has changed since."""

    def run(inputs: dict[str, Any]) -> StepReply:
        if not batch:
            return steps.step(inputs)
        (reply,) = Steps.step_all([steps], [inputs])
        assert isinstance(reply, StepReply)
        return reply

    run({"x": [1]})
    for is_replayed in (True, False):
        data = [2]
        line.fails.append(lost)
        with pytest.raises((DeadlineExceeded, KeyboardInterrupt)):
            run({"x": data})
        data[0] = 2 if is_replayed else 3
        assert run({"x": data}).replayed == is_replayed
    assert line.inputs == [[1], [2], [2], [3]]


def test_a_refused_step_is_not_sent_again(line: Line, steps: Steps) -> None:
    """The server has not done it, alone or in a batch."""
    for run in (steps.step, lambda inputs: Steps.step_all([steps], [inputs])):
        line.fails.append(InvalidRequest("no"))
        with pytest.raises(InvalidRequest):
            run({"x": 1})
    with pytest.raises(InvalidRequest, match="`x` cannot be sent") as caught:
        steps.step({"x": object()})
    assert caught.value.field == "x"
    steps.step({"x": 2})
    assert line.inputs == [2]


def test_mistakes_of_the_caller_are_refused(line: Line, steps: Steps) -> None:
    """One request has one step of a sequence, and `receive` comes after `send`."""
    with pytest.raises(ValueError, match="once"):
        Steps.step_all([steps, steps], [{}, {}])
    for line.has_streams in (False, True):
        steps.send({})
        steps.receive()
        with pytest.raises(ValueError, match="`send`"):
            steps.receive()
    assert line.kinds == ["step", "step"]


@pytest.mark.parametrize("has_streams", [False, True])
def test_steps_go_on_after_a_refused_one(line: Line, steps: Steps, has_streams: bool) -> None:
    """After all answers the next step has the number of the refused one."""
    line.has_streams = has_streams
    line.fails.extend([None, InvalidRequest("no such input")])
    for _ in range(3):
        steps.send({})
    assert steps.receive().turn == 1
    for refused in (InvalidRequest, TurnGap):
        with pytest.raises(refused):
            steps.receive()
    steps.send({})
    assert steps.receive().turn == 2
    assert steps.step({}).turn == 3
