"""This package's own protocol, which is the dialect of all requests that match no other."""

from __future__ import annotations

from ts_stateful.frontend.dialects.dialect import JSON, SSE, Responder, Translation, Whole
from ts_stateful.frontend.parsing.body import RequestBody
from ts_stateful.protocol.answers import TurnPart, encode
from ts_stateful.protocol.events import Event
from ts_stateful.protocol.requests import parse_request

__all__ = ["Own", "OwnResponder"]


class OwnResponder(Responder):
    """The engine's documents unchanged; over HTTP (`framed`) a stream is server-sent events."""

    stream_type = SSE
    idle = encode(TurnPart(""))
    pulls = True

    def __init__(self, *, framed: bool = True) -> None:
        self._framed = framed

    def whole(self, event: Event) -> Whole:
        """See `Responder`."""
        return Whole(event.status, event.body, event.content_type or JSON)

    def piece(self, event: Event) -> bytes:
        """See `Responder`."""
        return b"data: " + event.body + b"\n\n" if self._framed else event.body


class Own:
    """The protocol of docs/protocol.md."""

    responder: Responder = OwnResponder()

    def matches(self, body: RequestBody) -> bool:
        """See `Dialect`. Always True: a request of no dialect gets this package's errors."""
        return True

    def read(self, body: RequestBody) -> Translation:
        """See `Dialect`."""
        return Translation(parse_request(body.document), OwnResponder(framed=body.headers.is_http))
