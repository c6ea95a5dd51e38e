"""A sequence of a model with recurrent state, as its client holds it.

Owns the numbering of steps, which makes one that is repeated after a broken connection count once, and the sequence's end.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from typing import Any

from ts_stateful.client.calls import Calls
from ts_stateful.client.documents import parse
from ts_stateful.client.errors import ClientError
from ts_stateful.client.transports.transport import Pipeline
from ts_stateful.protocol.answers import Closed, SessionInfo, StepAnswer, TensorAnswer
from ts_stateful.protocol.errors import SessionClosed, SessionError, StatefulError
from ts_stateful.protocol.requests import Close, Info, InputTensor, Step

__all__ = ["StepReply", "Steps"]


class StepReply:
    """What a step answered: `outputs` by name, `turn` the number of the step, `closed` whether it was the last."""

    def __init__(self, answer: StepAnswer) -> None:
        self.turn = answer.turn
        self.closed = answer.closed
        self.outputs: dict[str, TensorAnswer] = {tensor.name: tensor for tensor in answer.outputs}


class Steps:
    """A sequence; leaving its `with` block ends it on the server. One client at a time."""

    def __init__(self, calls: Calls, session_id: str, *, num_steps: int) -> None:
        self.session_id = session_id
        self._calls = calls
        self._num_sent = self._num_done = num_steps
        self._num_missing = 0  # answers to steps that the pipeline has sent
        self._begun = num_steps > 0  # as far as the server may know
        self._ended = False
        self._pipeline: Pipeline | None = None
        self._ready: deque[StepReply] = deque()  # answers to `send` where there is no stream

    def step(
        self, inputs: Mapping[str, Any], *, end: bool = False, timeout_s: float | None = None
    ) -> StepReply:
        """One step: sends its inputs, numbers flat or nested, or bytes for an input that takes them raw.

        `end` ends the sequence.

        Raises:
            StatefulError: the server refuses; the sequence stands where it stood.
            ClientError: there was no answer.
        """
        command, raw = self._command(inputs, end=end)
        begun, self._begun = self._begun, True
        try:
            reply = StepReply(self._calls.call(command, StepAnswer, timeout_s, raw=raw))
        except StatefulError:
            self._begun = begun
            raise
        self._num_sent = self._num_done = reply.turn
        self._ended = reply.closed
        return reply

    def send(self, inputs: Mapping[str, Any], *, end: bool = False) -> None:
        """Sends a step as `step` does, and does not wait for the answer: `receive` gives it.

        In the sequence profile over gRPC any number may be on their way, up to the server's `maxSequenceJobQueueSize`;
        elsewhere every step waits for its answer here.
        """
        if not self._ready and self._pipeline is None:
            timeout_s = self._calls.attempts(None).deadline.remaining_s()
            self._pipeline = self._calls.transport.pipeline(self.session_id, timeout_s)
        if self._pipeline is None:
            self._ready.append(self.step(inputs, end=end))
            return
        command, raw = self._command(inputs, end=end)
        self._pipeline.send(command, raw)
        self._begun = True
        self._num_sent += 1
        self._num_missing += 1

    def receive(self, timeout_s: float | None = None) -> StepReply:
        """The answer to the first step that was sent and not received yet.

        Raises:
            StatefulError: the server refused that step, and with it those sent behind it; when their answers have been
                received too, the sequence stands where it stood.
            ClientError: the stream broke, or said nothing for `timeout_s`.
        """
        if self._pipeline is None:
            return self._ready.popleft()
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
        """The figures of the sequence, whose `turns` are steps."""
        return self._calls.call(Info(session_id=self.session_id), SessionInfo, timeout_s)

    def close(self) -> None:
        """Ends the sequence on the server; a second time does nothing."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.close()
        if self._ended or not self._begun:
            return
        applied = (SessionClosed, lambda: Closed(self.session_id))
        # Where no step was answered there may be none to end.
        with contextlib.suppress(*(() if self._num_sent else (SessionError,))):
            self._calls.call(Close(session_id=self.session_id), Closed, applied=applied)
        self._ended = True

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        # A sequence that has ended by itself is closed enough; and nothing may hide the error that ended the block.
        hidden = (SessionError,) if error is None else (ClientError, StatefulError)
        with contextlib.suppress(*hidden):
            self.close()

    def _command(self, inputs: Mapping[str, Any], *, end: bool) -> tuple[Step, dict[str, bytes]]:
        raw = {name: bytes(data) for name, data in inputs.items() if _is_raw(data)}
        command = Step(
            session_id=self.session_id,
            inputs=tuple(
                InputTensor(name=name, data=data)
                for name, data in inputs.items()
                if name not in raw
            ),
            start=self._num_sent == 0,
            end=end,
            turn=self._num_sent + 1,
        )
        return command, raw


def _is_raw(data: object) -> bool:
    return isinstance(data, bytes | bytearray | memoryview)
