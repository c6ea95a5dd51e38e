"""What a row becomes and how it is answered, whatever dialect it is in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.support.fake_dispatcher import NAMES
from tests.support.fake_torchserve import HTTP
from ts_stateful.frontend.dialects import Dialects
from ts_stateful.frontend.dialects.dialect import Voice, Whole
from ts_stateful.frontend.dialects.own import OwnVoice
from ts_stateful.frontend.parsing.headers import RowHeaders
from ts_stateful.frontend.parsing.requests import RequestParser
from ts_stateful.protocol.answers import encode
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.profile import Profile

__all__ = ["Exchange", "ask"]

REPLY = {
    "text": "red",
    "session_id": "s",
    "turn": 1,
    "finish_reason": "stop",
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 7},
    },
}


class Exchange:
    """A request that was asked: what an engine gets of it, or how it was refused, and in which voice it is answered."""

    def __init__(self) -> None:
        self.voice: Voice = OwnVoice()
        self.submitted: Submit | None = None
        self.error: Whole | None = None
        self.said: bytes = b""

    @property
    def submit(self) -> Submit:
        """What an engine gets."""
        assert self.submitted is not None, self.error
        return self.submitted

    @property
    def command(self) -> Any:
        """The request itself."""
        return self.submit.command

    @property
    def refusal(self) -> tuple[int, Any]:
        """Status and document of the error."""
        assert self.error is not None, self.submitted
        return self.error.status, json.loads(self.error.body)

    def answered(self, document: Mapping[str, Any] | None = None) -> Any:
        """The document that an engine's answer becomes."""
        body = encode(REPLY if document is None else document)
        whole = self.voice.whole(Event("r", EventKind.LAST, body, session_id="s"))
        assert (whole.status, whole.content_type) == (200, "application/json")
        return json.loads(whole.body)

    def streamed(self, *pieces: str, error: StatefulError | None = None) -> bytes:
        """What a stream becomes that has these pieces and then the end of the usual reply, or an error."""
        parts = [Event("r", EventKind.PART, encode({"text": piece})) for piece in pieces]
        if error is None:
            end = Event("r", EventKind.LAST, encode(REPLY))
        else:
            end = Event("r", EventKind.LAST, encode(error.to_body()), status=error.status)
        return b"".join(self.voice.piece(event) for event in [*parts, end])

    def fails(self, error: StatefulError) -> tuple[int, Any]:
        """Status and document that an engine's refusal becomes."""
        event = Event("r", EventKind.LAST, encode(error.to_body()), status=error.status)
        whole = self.voice.whole(event)
        return whole.status, json.loads(whole.body)


def ask(
    document: Any,
    *,
    headers: Mapping[str, str] | None = None,
    data: Mapping[str, Any] | None = None,
    profile: Profile = Profile.CONTINUOUS,
    grpc: bool = False,
) -> Exchange:
    """Sends a JSON document (or `data`, or a raw body) through the parser of a profile."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    names = {} if grpc else {**HTTP, **(headers or {})}
    parser = RequestParser(profile, NAMES, dialects=Dialects("chat"), new_seed=lambda: 7)
    read = RowHeaders.read(names, NAMES, minting=profile is Profile.SEQUENCE)
    exchange = Exchange()

    def speak(voice: Voice) -> None:
        exchange.voice = voice

    try:
        message = parser.parse("r", data or {"data" if grpc else "body": body}, read, speak)
    except StatefulError as error:
        event = Event("r", EventKind.LAST, encode(error.to_body()), status=error.status)
        exchange.error = exchange.voice.whole(event)
        return exchange
    if isinstance(message, Event):
        exchange.said = exchange.voice.whole(message).body
    else:
        exchange.submitted = message
    return exchange
