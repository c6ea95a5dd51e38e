"""The common part of other dialects' responders: typed answers of the engine."""

from __future__ import annotations

import re
from abc import abstractmethod

import msgspec
from msgspec import Struct, structs

from ts_stateful.frontend.dialects.dialect import Responder, Whole
from ts_stateful.protocol.answers import Logprob, Usage
from ts_stateful.protocol.chat import ToolCall
from ts_stateful.protocol.events import Event, EventKind

__all__ = ["EngineAnswer", "EngineError", "Translator", "line_of"]


class EngineError(Struct, frozen=True):
    """An error, as `errors.StatefulError.to_body` writes it."""

    code: str = "internal"
    status: int = 500
    message: str = ""
    field: str | None = None

    @property
    def sentence(self) -> str:
        """Join field and message, for a dialect with one string for both."""
        if self.field is None or re.search(rf"(?<!\w){re.escape(self.field)}(?!\w)", self.message):
            return self.message
        return f"{self.field}: {self.message}"


class EngineAnswer(Struct, frozen=True):
    """The fields of an answer, or of a stream's event, that other dialects have too."""

    text: str = ""
    session_id: str | None = None
    finish_reason: str | None = None
    usage: Usage = Usage()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[Logprob, ...] | None = None
    error: EngineError | None = None
    choice: int = 0


_decode = msgspec.json.Decoder(EngineAnswer).decode


class Translator(Responder):
    """The responder of another dialect, one for each request."""

    def whole(self, event: Event) -> Whole:
        """See `Responder`."""
        answer = _read(event)
        if answer.error is not None:
            return self.error(answer.error)
        return Whole(200, self.answer(answer))

    def piece(self, event: Event) -> bytes:
        """See `Responder`."""
        answer = _read(event)
        if answer.error is not None:
            return self.late_error(answer.error)
        if event.kind is EventKind.CHOICE:
            return self.end_choice(answer)
        return self.part(answer) if event.kind is EventKind.PART else self.end(answer)

    def keep(self, event: Event) -> None:
        """See `Responder`."""
        self.add_choice(_read(event))

    @abstractmethod
    def answer(self, answer: EngineAnswer) -> bytes:
        """Write the body of an answer in one piece."""

    @abstractmethod
    def error(self, error: EngineError) -> Whole:
        """Write an error before anything was sent."""

    def part(self, answer: EngineAnswer) -> bytes:
        """Write more of a stream: its text, and what belongs to it."""
        raise NotImplementedError(f"{type(self).__name__} has no streams")

    def end(self, answer: EngineAnswer) -> bytes:
        """Write the end of a stream; `answer.text` is the rest of its text."""
        raise NotImplementedError(f"{type(self).__name__} has no streams")

    def end_choice(self, answer: EngineAnswer) -> bytes:
        """Write the end of one of several replies of a stream."""
        raise NotImplementedError(f"{type(self).__name__} has one reply")

    def add_choice(self, answer: EngineAnswer) -> None:
        """Keep one of several replies for `answer`."""
        raise NotImplementedError(f"{type(self).__name__} has one reply")

    def late_error(self, error: EngineError) -> bytes:
        """Write an error in the middle of a stream."""
        return self.error(error).body


def _read(event: Event) -> EngineAnswer:
    answer = _decode(event.body)
    return structs.replace(answer, choice=event.choice) if event.choice else answer


def line_of(document: object) -> bytes:
    """Encode JSON without line breaks."""
    return msgspec.json.encode(document)
