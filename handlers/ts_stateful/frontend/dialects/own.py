"""This package's own protocol, as the dialect that everything is in that is in no other.

Owns how its documents are framed; what they are is `protocol`'s and `answers`'.
"""

from __future__ import annotations

from ts_stateful.frontend.dialects.dialect import JSON, SSE, Letter, Translation, Voice, Whole
from ts_stateful.protocol.answers import TurnPart, encode
from ts_stateful.protocol.events import Event
from ts_stateful.protocol.requests import parse_request

__all__ = ["Own", "OwnVoice"]


class OwnVoice:
    """Documents as they come from the engine; over HTTP (`framed`) a stream is server-sent events."""

    stream_type = SSE
    idle = encode(TurnPart(""))
    pulls = True

    def __init__(self, *, framed: bool = True) -> None:
        self._framed = framed

    def whole(self, event: Event) -> Whole:
        """See `Voice`."""
        return Whole(event.status, event.body, event.content_type or JSON)

    def piece(self, event: Event) -> bytes:
        """See `Voice`."""
        return b"data: " + event.body + b"\n\n" if self._framed else event.body


class Own:
    """The protocol of docs/protocol.md."""

    voice: Voice = OwnVoice()

    def speaks(self, letter: Letter) -> bool:
        """See `Dialect`; whatever is in no other dialect is refused as this package refuses."""
        return True

    def read(self, letter: Letter) -> Translation:
        """See `Dialect`."""
        return Translation(parse_request(letter.document), OwnVoice(framed=letter.headers.is_http))
