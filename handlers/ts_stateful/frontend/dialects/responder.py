"""What the dialects of other servers have in common: answers of the engine in typed form, and the voice that is made of them.

Owns the reading of this package's own documents for those who say them otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import msgspec
from msgspec import Struct

from ts_stateful.frontend.dialects.dialect import JSON, Whole
from ts_stateful.protocol.answers import Usage
from ts_stateful.protocol.events import Event, EventKind

__all__ = ["Answer", "Refusal", "SpokenVoice", "line_of"]


class Refusal(Struct, frozen=True):
    """An error, as `errors.StatefulError.to_body` has it."""

    code: str = "internal"
    status: int = 500
    message: str = ""
    field: str | None = None

    @property
    def sentence(self) -> str:
        """What is wrong and where, for a dialect that has one string for it."""
        if self.field is None or self.field in self.message:
            return self.message
        return f"{self.field}: {self.message}"


class Answer(Struct, frozen=True):
    """An answer, or an event of a stream, as far as anybody else has a word for it."""

    text: str = ""
    session_id: str | None = None
    finish_reason: str | None = None
    usage: Usage = Usage()
    error: Refusal | None = None


_decode = msgspec.json.Decoder(Answer).decode


class SpokenVoice(ABC):
    """The voice of a dialect that has words of its own for everything; one for each request."""

    stream_type: ClassVar[str] = JSON
    idle: ClassVar[bytes] = b""
    pulls: ClassVar[bool] = False

    def whole(self, event: Event) -> Whole:
        """See `Voice`."""
        answer = _decode(event.body)
        if answer.error is not None:
            return self.refused(answer.error)
        return Whole(200, self.said(answer))

    def piece(self, event: Event) -> bytes:
        """See `Voice`."""
        answer = _decode(event.body)
        if answer.error is not None:
            return self.broken(answer.error)
        return self.part(answer.text) if event.kind is EventKind.PART else self.end(answer)

    @abstractmethod
    def said(self, answer: Answer) -> bytes:
        """The body of an answer in one piece."""

    @abstractmethod
    def refused(self, refusal: Refusal) -> Whole:
        """An error before anything was sent."""

    def part(self, text: str) -> bytes:
        """More text of a stream."""
        raise NotImplementedError(f"{type(self).__name__} has no streams")

    def end(self, answer: Answer) -> bytes:
        """The last of a stream; `answer.text` is the rest of its text."""
        raise NotImplementedError(f"{type(self).__name__} has no streams")

    def broken(self, refusal: Refusal) -> bytes:
        """An error in the middle of a stream."""
        return self.refused(refusal).body


def line_of(document: object) -> bytes:
    """JSON without a line break inside."""
    return msgspec.json.encode(document)
