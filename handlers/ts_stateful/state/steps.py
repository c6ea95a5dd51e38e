"""A step of a sequence on its way: who asked for it, and how it is answered.

Owns the documents of steps. Knows nothing of when one runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from ts_stateful.answering import Answering
from ts_stateful.answers import StepAnswer, TensorAnswer, encode
from ts_stateful.config import StateConfig
from ts_stateful.declarations import Datatype, Output, Raw
from ts_stateful.protocol import Step
from ts_stateful.sessions.session import Session
from ts_stateful.state.batch import Row
from ts_stateful.state.commits import Answered
from ts_stateful.state.passes import Stepped
from ts_stateful.state.sequence import SequenceState
from ts_stateful.tensors import write_text

__all__ = ["Answers", "Fed", "Job"]

_PCM16_SCALE = 32768.0
_CONTENT_TYPES = {
    Raw.TEXT: "text/plain",
    Raw.PCM16: "application/octet-stream",
    Raw.BYTES: "application/octet-stream",
}


class Fed(NamedTuple):
    """What a step was run with: enough to run it again."""

    inputs: Sequence[bytes]
    shapes: Sequence[tuple[int, ...]]
    start: bool
    end: bool


@dataclass(eq=False, slots=True)
class Job:
    """One step that was asked for; `request_ids` are all who wait for it.

    One that is `recorded` was answered so by an engine that is gone, and runs for its states alone. One that `has_run` is
    being written.
    """

    session: Session[SequenceState]
    step: Step
    inputs: Sequence[bytes]
    shapes: Sequence[tuple[int, ...]]
    raw: bool = False
    opens: bool = False
    request_ids: list[str] = field(default_factory=list)
    recorded: Answered | None = None
    has_run: bool = False

    @property
    def row(self) -> Row:
        """What the model gets, as things stand: a sequence without a step begins with this one."""
        state = self.session.state
        begins = self.step.start or not state.num_steps
        return Row(self.inputs, self.shapes, state.lengths, begins, self.step.end)


class Answers:
    """Answers steps."""

    def __init__(self, settings: StateConfig, model_name: str, answering: Answering) -> None:
        self._settings = settings
        self._model_name = model_name
        self._answering = answering
        self._raw = next((index for index, o in enumerate(settings.outputs) if o.raw), None)
        self._names = [(output.name, _datatype(output)) for output in settings.outputs]
        self._shown = [index for index, o in enumerate(settings.outputs) if not o.hidden]

    def make(self, job: Job, stepped: Stepped, opened_until: int | None) -> Answered:
        """The outputs, and that the step is done."""
        closed = job.step.end
        body, content_type = self._body(job, stepped)
        until = None if closed else opened_until
        return Answered(tuple(job.request_ids), body, content_type, until, closed)

    def send(self, request_ids: Iterable[str], session_id: str, answered: Answered) -> None:
        """To all who wait."""
        for request_id in request_ids:
            self._answering.send(
                request_id,
                answered.body,
                content_type=answered.content_type,
                session_id=session_id,
                opened_until=answered.opened_until,
                closed=answered.closed,
            )

    def replay(self, request_id: str, session: Session[SequenceState], body: bytes) -> None:
        """The answer of the last step once more."""
        document = msgspec.json.decode(body) | {"replayed": True}
        self._answering.answer(request_id, document, session_id=session.session_id)

    def _body(self, job: Job, stepped: Stepped) -> tuple[bytes, str | None]:
        if job.raw and self._raw is not None:
            declared = self._settings.outputs[self._raw]
            assert declared.raw is not None
            tensor = stepped.outputs[self._raw].tensor(stepped.row)
            return _raw_body(declared, tensor), _CONTENT_TYPES[declared.raw]
        document = StepAnswer(
            model_name=self._model_name,
            session_id=job.session.session_id,
            turn=job.session.state.num_steps,
            outputs=[
                TensorAnswer(*self._names[number], *stepped.outputs[number].elements(stepped.row))
                for number in (self._asked(job.step) if job.step.outputs else self._shown)
            ],
            id=job.step.id,
            closed=job.step.end,
        )
        return encode(document), None

    def _asked(self, step: Step) -> Sequence[int]:
        """The numbers of the outputs that it names."""
        names = {output.name for output in step.outputs}
        return [number for number, (name, _) in enumerate(self._names) if name in names]


def _datatype(declared: Output) -> str:
    # No format that clients read has BF16; its elements are those of FP32.
    datatype = Datatype.FP32 if declared.datatype is Datatype.BF16 else declared.datatype
    return str(datatype.value)


def _raw_body(declared: Output, tensor: Tensor) -> bytes:
    if declared.raw is Raw.TEXT:
        return write_text(tensor.reshape(-1).tolist())
    if declared.raw is Raw.PCM16 and tensor.is_floating_point():
        scaled = (tensor.float() * _PCM16_SCALE).round().clamp(-_PCM16_SCALE, _PCM16_SCALE - 1)
        tensor = scaled.to(torch.int16)
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    return tensor.contiguous().numpy().tobytes()
