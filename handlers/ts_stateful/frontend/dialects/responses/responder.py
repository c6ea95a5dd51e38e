"""Answers about responses: their objects, and streams of the events that build them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from ts_stateful.frontend.dialects.dialect import Whole
from ts_stateful.frontend.dialects.openai_responder import OpenAiResponder, image_field
from ts_stateful.frontend.dialects.responder import EngineError, line_of
from ts_stateful.frontend.dialects.responses.ids import ResponseId
from ts_stateful.frontend.dialects.responses.note import Note, decode_note
from ts_stateful.frontend.dialects.responses.output import OutputItems, StreamEvent
from ts_stateful.frontend.dialects.responses.resource import (
    TurnDocument,
    failed,
    finished,
    unfinished,
    whole,
)
from ts_stateful.protocol.events import Event, EventKind

__all__ = [
    "CountResponder",
    "CreatedResponder",
    "NotFound",
    "ResponseResponder",
    "StreamResponder",
    "read_document",
]

_DONE = b"data: [DONE]\n\n"
# Our names of fields to those of a response, where they differ.
_PARAMS = {
    "prompt": "input",
    "system": "instructions",
    "images": "input",
    "response_format": "text.format",
    "adapter": "model",
    "turn": "response_id",
}
_MISSING = ("session_not_found", "session_expired", "session_closed", "turn_gap")
_decode = msgspec.json.Decoder(TurnDocument).decode


class NotFound(msgspec.Struct, frozen=True):
    """The error about something that does not exist, or not any more: `kind` is its name for people, `field` the client's."""

    kind: str
    name: str
    code: str | None = None
    field: str | None = None

    def answer(self) -> Whole:
        """Return the error as OpenAI words it."""
        document = {
            "message": f"{self.kind} with id '{self.name[:300]}' not found.",
            "type": "invalid_request_error",
            "param": self.field,
            "code": self.code,
        }
        return Whole(404, line_of({"error": document}))


class ResponseResponder(OpenAiResponder):
    """The object of one response; `image_fields` has the client's path of `images[0]` and so on."""

    announces = True
    items_field = "input"

    def __init__(
        self,
        missing: NotFound | None = None,
        image_fields: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._missing = missing
        self._image_fields = image_fields

    def whole(self, event: Event) -> Whole:
        """See `Responder`."""
        document = read_document(event)
        if document.error is not None:
            return self.error(document.error)
        made = self.document(document)
        return made.answer() if isinstance(made, NotFound) else Whole(200, line_of(made))

    def document(self, answer: TurnDocument) -> dict[str, Any] | NotFound:
        """Return the document of an answer, or the error if what was asked for is not in it."""
        return whole(answer, decode_note(answer.note))

    def error(self, error: EngineError) -> Whole:
        """See `Translator`."""
        if self._missing is not None and error.code in _MISSING and error.field != "turn":
            return self._missing.answer()
        return super().error(error)

    def _param(self, field: str | None) -> str | None:
        found = image_field(field, self._image_fields) or _PARAMS.get(field or "", field)
        return self.items_field if found == "input" else found


class CountResponder(ResponseResponder):
    """The number of tokens that a response would be made from."""

    def document(self, answer: TurnDocument) -> dict[str, Any]:
        """See `ResponseResponder`."""
        return {"object": "response.input_tokens", "input_tokens": answer.usage.prompt_tokens}


class CreatedResponder(ResponseResponder):
    """The answer to a request for a response without a stream."""

    def __init__(
        self, note: Note, missing: NotFound | None, image_fields: Mapping[str, str]
    ) -> None:
        super().__init__(missing, image_fields)
        self._note = note

    def document(self, answer: TurnDocument) -> dict[str, Any]:
        """See `ResponseResponder`. One in the background is answered before it ends."""
        return whole(answer, self._note)


class StreamResponder(ResponseResponder):
    """A stream of events, after the one with the number `starting_after`.

    An event's number follows from the reply's text alone: each event counts one, a delta as many as it has characters. So the
    numbers are the same for every reader, whatever pieces the engine sends. Over WebSocket messages are not `framed`.
    """

    def __init__(
        self,
        note: Note | None,
        missing: NotFound | None,
        image_fields: Mapping[str, str] = MappingProxyType({}),
        *,
        starting_after: int = -1,
        framed: bool = True,
    ) -> None:
        super().__init__(missing, image_fields)
        self._note = note
        self._next = 0
        self._after = starting_after
        self._framed = framed
        self._output: OutputItems | None = None
        self._response = ResponseId("", 0)

    def piece(self, event: Event) -> bytes:
        """See `Responder`; the acceptance of a request begins its stream."""
        document = read_document(event)
        made: list[StreamEvent] = []
        if self._output is None:
            made += self._begin(event, document)
        if document.error is not None:
            made += self._failed(document.error)
        elif event.kind is not EventKind.ACCEPTED:
            made += self._fed(document, is_last=event.kind is EventKind.LAST)
        end = _DONE if event.kind is EventKind.LAST and self._framed else b""
        return b"".join(self._numbered(made)) + end

    def _begin(self, event: Event, document: TurnDocument) -> list[StreamEvent]:
        self._response = ResponseId(event.session_id or "", event.turn or document.turn)
        self._note = self._note or decode_note(document.note)
        self._output = OutputItems(self._response)
        begun = unfinished(self._response, self._note)
        return [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]

    def _fed(self, document: TurnDocument, *, is_last: bool) -> Iterator[StreamEvent]:
        assert self._output is not None
        assert self._note is not None
        yield from self._output.feed(document)
        if not is_last:
            return
        is_response = self._note.kind == "response"
        yield from self._output.end(document.finish_reason, forced_empty=is_response)
        made = finished(self._response, self._note, document, self._output.items)
        # There is no event for a response that was cancelled.
        kind = "incomplete" if made["status"] == "incomplete" else "completed"
        yield {"type": f"response.{kind}", "response": made}

    def _failed(self, error: EngineError) -> Iterator[StreamEvent]:
        assert self._note is not None
        shown = {"code": error.code, "message": error.sentence}
        yield {"type": "response.failed", "response": failed(self._response, self._note, shown)}

    def _numbered(self, events: Iterable[StreamEvent]) -> Iterator[bytes]:
        for event in events:
            text = event.get("delta") if event["type"] in _COUNTED else None
            self._next += 1 if text is None else len(text)
            number = self._next - 1
            if number <= self._after:
                continue
            shown = (
                event if text is None else _without_start(event, len(text) - number + self._after)
            )
            body = line_of({"type": event["type"], "sequence_number": number, **shown})
            name = event["type"].encode()
            yield b"event: %b\ndata: %b\n\n" % (name, body) if self._framed else body + b"\n"


_COUNTED = ("response.output_text.delta", "response.reasoning_text.delta")


def _without_start(delta: StreamEvent, num_chars: int) -> StreamEvent:
    """Return a delta without its first characters, which the reader has, and their tokens."""
    if num_chars <= 0:
        return delta
    rest = {**delta, "delta": delta["delta"][num_chars:]}
    if "logprobs" in delta:
        known = len(delta["delta"][:num_chars].encode())
        ends = itertools.accumulate(len(one["bytes"]) for one in delta["logprobs"])
        scored = zip(delta["logprobs"], ends, strict=True)
        rest["logprobs"] = [one for one, end in scored if end > known]
    return rest


def read_document(event: Event) -> TurnDocument:
    """Return the document of an event; an acceptance may have none."""
    return _decode(event.body) if event.body else TurnDocument()
