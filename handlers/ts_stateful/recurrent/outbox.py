"""The answers to steps, as events for the worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import torch
from msgspec import structs
from torch import Tensor

from ts_stateful.config.schema import StateConfig
from ts_stateful.engine.core import EngineCore
from ts_stateful.engine.outbox import Outbox
from ts_stateful.protocol.answers import PackedAnswer, StepAnswer, encode
from ts_stateful.protocol.declarations import Output, Raw
from ts_stateful.protocol.events import Encoding, Event, EventKind
from ts_stateful.protocol.requests import Step
from ts_stateful.protocol.tensors import write_text
from ts_stateful.recurrent.output_rows import OutputRows, elements_of
from ts_stateful.recurrent.step import PendingStep
from ts_stateful.recurrent.step_records import Answered

__all__ = ["StepOutbox"]

_LAST = EventKind.LAST
_PCM16_SCALE = 32768.0
_CONTENT_TYPES = {
    Raw.TEXT: "text/plain",
    Raw.PCM16: "application/octet-stream",
    Raw.BYTES: "application/octet-stream",
}


class StepOutbox(Outbox):
    """Emits the answers to steps."""

    def __init__(self, core: EngineCore[Any], settings: StateConfig, model_name: str) -> None:
        super().__init__(core.outbox.events, core.clock)
        self._settings = settings
        self.model_name = model_name
        self._raw = next((index for index, o in enumerate(settings.outputs) if o.raw), None)
        self._shown = [index for index, o in enumerate(settings.outputs) if not o.hidden]

    def answers(
        self, done: Sequence[tuple[int, PendingStep]], outputs: Sequence[OutputRows]
    ) -> list[Answered]:
        """Return the answers to steps that were these rows of a pass, before they are counted."""
        answers = []
        for row, step in done:
            command, session = step.command, step.session
            until = content_type = None
            if step.creates_session and not command.end:
                until = self.until(session.expires_at)
            shown = self._asked(command) if command.outputs else self._shown
            if step.encoding is Encoding.RAW and self._raw is not None:
                body, content_type = self._raw_body(outputs[self._raw].tensor(row))
            elif step.encoding is Encoding.PACKED:
                packed = tuple(outputs[number].packed(row) for number in shown)
                body = msgspec.msgpack.encode(PackedAnswer(self.model_name, packed))
                content_type = PackedAnswer.content_type
            else:
                document = StepAnswer(
                    model_name=self.model_name,
                    session_id=session.session_id,
                    turn=session.state.num_steps + 1,
                    outputs=[outputs[number].answers[row] for number in shown],
                    id=command.id,
                    closed=command.end,
                )
                body = encode(document)
            answered = Answered(
                step.request_ids, body, content_type, until, command.end, identity=step.identity
            )
            answers.append(answered)
        return answers

    def send(self, request_ids: Iterable[str], session_id: str, answered: Answered) -> None:
        """Send an answer to all requests that wait for it."""
        for request_id in request_ids:
            event = Event(
                request_id,
                _LAST,
                answered.body,
                session_id=session_id,
                opened_until=answered.opened_until,
                closed=answered.closed,
                content_type=answered.content_type,
            )
            self.events.emit(event)

    def send_all(self, step: PendingStep, answered: Answered) -> None:
        """Send an answer to all requests that wait for a step, to each with the id that its client gave it."""
        session_id, others = step.session.session_id, step.other_ids or {}
        if answered.content_type is not None:
            others = {}
        self.send([one for one in step.request_ids if one not in others], session_id, answered)
        for request_id, asked in others.items():
            body = _document(answered, id=asked)
            self.send([request_id], session_id, structs.replace(answered, body=body))

    def replay(self, request_id: str, step: Step, answered: Answered) -> None:
        """Send the answer to the last step again, to a request for the same one. A fork's is that of its source."""
        fields = {"session_id": step.session_id, "id": step.id, "replayed": True}
        body = _document(answered, **fields)
        again = Answered((request_id,), body, closed=answered.closed)
        self.send([request_id], step.session_id or "", again)

    def _raw_body(self, tensor: Tensor) -> tuple[bytes, str]:
        assert self._raw is not None
        declared = self._settings.outputs[self._raw]
        assert declared.raw is not None
        return _elements(declared, tensor), _CONTENT_TYPES[declared.raw]

    def _asked(self, step: Step) -> Sequence[int]:
        """Return the numbers of the outputs that a step names."""
        names = {output.name for output in step.outputs}
        return [index for index, o in enumerate(self._settings.outputs) if o.name in names]


def _document(answered: Answered, **fields: Any) -> bytes:
    """Return the document of an answer with other fields; those that are None are left out."""
    document = msgspec.json.decode(answered.body) | fields
    return encode({name: value for name, value in document.items() if value is not None})


def _elements(declared: Output, tensor: Tensor) -> bytes:
    if declared.raw is Raw.TEXT:
        return write_text(tensor.reshape(-1).tolist())
    if declared.raw is Raw.PCM16 and tensor.is_floating_point():
        scaled = (tensor.float() * _PCM16_SCALE).round().clamp(-_PCM16_SCALE, _PCM16_SCALE - 1)
        tensor = scaled.to(torch.int16)
    return elements_of(tensor)
