"""Sequences of models with recurrent state. Numbered steps count once, also if a broken connection repeats them."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ts_stateful.client.calls import Calls
from ts_stateful.client.documents import encode, parse, typed
from ts_stateful.client.errors import ClientError
from ts_stateful.client.transports.transport import Pipeline
from ts_stateful.protocol.answers import Closed, SessionInfo, StepAnswer, TensorAnswer
from ts_stateful.protocol.errors import SessionClosed, SessionError, StatefulError, TurnGap
from ts_stateful.protocol.requests import Close, Command, Info, InputTensor, Step

__all__ = ["StepReply", "Steps"]


class _StepBatch(Command, frozen=True, tag="batch", kw_only=True):
    requests: tuple[Step, ...]


class _Answers(msgspec.Struct):
    answers: list[dict[str, Any]]


class StepReply:
    """The answer to a step: `outputs` by name, `turn` its number, `closed` True if it was the last.

    `replayed` is True if the step had been done already, and was sent again.
    """

    def __init__(self, answer: StepAnswer) -> None:
        self.turn = answer.turn
        self.closed = answer.closed
        self.replayed = answer.replayed
        self.outputs: dict[str, TensorAnswer] = {tensor.name: tensor for tensor in answer.outputs}


class Steps(contextlib.AbstractContextManager["Steps"]):
    """A sequence; leaving its `with` block ends it on the server. Only one client may use it, in one thread at a time."""

    def __init__(self, calls: Calls, session_id: str, *, num_steps: int) -> None:
        self.session_id = session_id
        self._calls = calls
        self._num_sent = self._num_done = num_steps
        self._num_missing = 0  # answers to steps that the pipeline has sent
        self._begun = num_steps > 0  # the server may have the sequence
        self._ended = False
        self._pipeline: Pipeline | None = None
        # Answers to `send` where there is no stream.
        self._ready: deque[StepReply | StatefulError] = deque()
        self._unanswered: tuple[Step, dict[str, bytes]] | None = None  # the server may have done it

    def step(
        self, inputs: Mapping[str, Any], *, end: bool = False, timeout_s: float | None = None
    ) -> StepReply:
        """Run one step on inputs: numbers, flat or nested, or bytes for an input that takes them raw.

        `end` ends the sequence.

        Raises:
            StatefulError: the server refuses; the sequence is unchanged.
            ClientError: there was no answer. The step counts once if it is repeated with the same inputs. Before another
                step it is sent again, so that none is lost.
        """
        return self._run(*self._command(inputs, end=end, timeout_s=timeout_s), timeout_s)

    def _run(self, command: Step, raw: dict[str, bytes], timeout_s: float | None) -> StepReply:
        begun, self._begun = self._begun, True
        self._unanswered = command, raw
        try:
            reply = StepReply(self._calls.call(command, StepAnswer, timeout_s, raw=raw))
        except StatefulError:
            self._begun, self._unanswered = begun, None
            raise
        return self._taken(reply)

    @staticmethod
    def step_all(
        sequences: Sequence[Steps],
        inputs: Sequence[Mapping[str, Any]],
        *,
        timeout_s: float | None = None,
    ) -> list[StepReply | StatefulError]:
        """Run one step of each of several sequences, all in one request to the front without TorchServe.

        `inputs[i]` are those of `sequences[i]`, as numbers. A step that the server refuses has its error among the replies, and
        its sequence is unchanged.

        Raises:
            ValueError: there are not as many inputs as sequences, some are bytes, or a sequence is there twice.
            StatefulError: the server refuses the request as a whole.
            ClientError: there was no answer; see `step`.
        """
        pairs = list(zip(sequences, inputs, strict=True))
        if not pairs:
            return []
        if len({sequence.session_id for sequence in sequences}) < len(pairs):
            raise ValueError("a sequence takes one step in a request; name each one once")
        commands = [sequence._command(given, timeout_s=timeout_s) for sequence, given in pairs]
        if any(raw for _, raw in commands):
            raise ValueError("bytes are sent by `step` alone; pass numbers")
        for sequence, command in zip(sequences, commands, strict=True):
            sequence._begun, sequence._unanswered = True, command
        batch = _StepBatch(requests=tuple(command for command, _ in commands))
        try:
            found = sequences[0]._calls.call(batch, _Answers, timeout_s)
        except StatefulError:
            for sequence in sequences:
                sequence._unanswered = None
            raise
        return [
            sequence._answered(document)
            for sequence, document in zip(sequences, found.answers, strict=True)
        ]

    def _answered(self, document: dict[str, Any]) -> StepReply | StatefulError:
        try:
            reply = StepReply(typed(document, StepAnswer))
        except StatefulError as error:
            self._unanswered = None
            return error
        return self._taken(reply)

    def _taken(self, reply: StepReply) -> StepReply:
        self._unanswered = None
        self._num_sent = self._num_done = reply.turn
        self._ended = reply.closed
        return reply

    def send(self, inputs: Mapping[str, Any], *, end: bool = False) -> None:
        """Send a step as `step` does, without waiting for the answer, which `receive` returns.

        In the sequence profile over gRPC up to `maxSequenceJobQueueSize` steps may be unanswered. Elsewhere every step waits
        for its answer here.
        """
        if not self._ready and self._pipeline is None:
            timeout_s = self._calls.attempts(None).deadline.remaining_s()
            self._pipeline = self._calls.transport.pipeline(self.session_id, timeout_s)
        command, raw = self._command(inputs, end=end)
        if self._pipeline is None:
            if self._ready and isinstance(self._ready[-1], StatefulError):
                self._ready.append(TurnGap("the server refused the step before this one"))
                return
            try:
                self._ready.append(self._run(command, raw, None))
            except StatefulError as error:
                self._ready.append(error)
            return
        self._pipeline.send(command, raw)
        self._begun = True
        self._num_sent += 1
        self._num_missing += 1

    def receive(self, timeout_s: float | None = None) -> StepReply:
        """Return the answer to the first step that was sent and not received yet.

        Raises:
            StatefulError: the server refused that step and the steps sent after it. When their answers have been received
                too, the sequence is unchanged.
            ClientError: the stream broke, or was silent for `timeout_s`.
            ValueError: there is no such step.
        """
        if self._ready:
            answer = self._ready.popleft()
            if isinstance(answer, StatefulError):
                raise answer
            return answer
        if self._pipeline is None or not self._num_missing:
            raise ValueError("all steps that were sent have been received; `send` the next one")
        timeout_s = self._calls.attempts(timeout_s).deadline.remaining_s()
        body = self._pipeline.receive(timeout_s)
        self._num_missing -= 1
        try:
            reply = StepReply(parse(body, StepAnswer))
        except StatefulError:
            if not self._num_missing:
                self._num_sent = self._num_done
            raise
        self._num_done = reply.turn
        self._ended = reply.closed
        return reply

    def info(self, timeout_s: float | None = None) -> SessionInfo:
        """Return the statistics of the sequence, whose `turns` are steps."""
        return self._calls.call(Info(session_id=self.session_id), SessionInfo, timeout_s)

    def close(self) -> None:
        """End the sequence on the server; a second call does nothing."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.close()
        if self._ended or not self._begun:
            return
        applied = (SessionClosed, lambda: Closed(self.session_id))
        # If no step was answered, there may be no sequence to end.
        with contextlib.suppress(*(() if self._num_sent else (SessionError,))):
            self._calls.call(Close(session_id=self.session_id), Closed, applied=applied)
        self._ended = True

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        # A sequence that has ended needs no close, and no error may hide the one that ended the block.
        hidden = (SessionError,) if error is None else (ClientError, StatefulError)
        with contextlib.suppress(*hidden):
            self.close()

    def _command(
        self, inputs: Mapping[str, Any], *, end: bool = False, timeout_s: float | None = None
    ) -> tuple[Step, dict[str, bytes]]:
        """Return the next step, after the answer to another one that has none yet."""
        kinds = (bytes, bytearray, memoryview)
        raw = {name: bytes(data) for name, data in inputs.items() if isinstance(data, kinds)}
        # Encoded here: the caller may change a list after a failure.
        tensors = tuple(
            InputTensor(name=name, data=msgspec.Raw(encode(data, name)))
            for name, data in inputs.items()
            if name not in raw
        )
        lost = self._unanswered
        if lost is not None and (tensors, end, raw) != (lost[0].inputs, lost[0].end, lost[1]):
            with contextlib.suppress(StatefulError):  # then it was not done
                self._run(*lost, timeout_s)
        command = Step(
            session_id=self.session_id,
            inputs=tensors,
            start=self._num_sent == 0,
            end=end,
            turn=self._num_sent + 1,
        )
        return command, raw
