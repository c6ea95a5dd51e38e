"""Requests of any dialect, and their answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.fake_dispatcher import NAMES, FixedSeeds
from tests.support.fake_torchserve import HTTP
from ts_stateful.frontend.dialects import Dialects
from ts_stateful.frontend.dialects.dialect import Responder, Whole
from ts_stateful.frontend.parsing.headers import RequestHeaders
from ts_stateful.frontend.parsing.requests import RequestParser
from ts_stateful.frontend.pending_response import ClientKind, PendingResponse
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
    """A request, and the message to the engine or the error that it became."""

    def __init__(self) -> None:
        self.pending = PendingResponse("r", ClientKind.HTTP, NAMES)
        self.submitted: Submit | None = None
        self.error: Whole | None = None
        self.answer: bytes = b""

    @property
    def responder(self) -> Responder:
        """Return the writer of the answer."""
        return self.pending.responder

    @property
    def submit(self) -> Submit:
        """Return the message to the engine."""
        assert self.submitted is not None, self.error
        return self.submitted

    @property
    def command(self) -> Any:
        """Return the request in it."""
        return self.submit.command

    @property
    def refusal(self) -> tuple[int, Any]:
        """Return status and document of the error."""
        assert self.error is not None, self.submitted
        return self.error.status, json.loads(self.error.body)

    def answered(self, document: Mapping[str, Any] | None = None) -> Any:
        """Return the document that an engine's answer becomes."""
        body = encode(REPLY if document is None else document)
        whole = self.responder.whole(Event("r", EventKind.LAST, body, session_id="s"))
        assert (whole.status, whole.content_type) == (200, "application/json")
        return json.loads(whole.body)

    def streamed(self, *pieces: str, error: StatefulError | None = None) -> bytes:
        """Return the stream of these pieces and the end of the usual reply, or an error."""
        parts = [Event("r", EventKind.PART, encode({"text": piece})) for piece in pieces]
        if error is None:
            end = Event("r", EventKind.LAST, encode(REPLY))
        else:
            end = Event("r", EventKind.LAST, encode(error.to_body()), status=error.status)
        return b"".join(self.responder.piece(event) for event in [*parts, end])

    def fails(self, error: StatefulError) -> tuple[int, Any]:
        """Return status and document that an engine's error becomes."""
        event = Event("r", EventKind.LAST, encode(error.to_body()), status=error.status)
        whole = self.responder.whole(event)
        return whole.status, json.loads(whole.body)


def ask(
    document: Any,
    *,
    headers: Mapping[str, str] | None = None,
    data: Mapping[str, Any] | None = None,
    profile: Profile = Profile.CONTINUOUS,
    grpc: bool = False,
    strict: bool = False,
    adapters: Sequence[str] = (),
) -> Exchange:
    """Send a JSON document (or `data`, or a raw body) through the parser of a profile."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    names = {} if grpc else {**HTTP, **(headers or {})}
    dialects = Dialects("chat", adapters, strict=strict)
    parser = RequestParser(profile, NAMES, dialects, rng=FixedSeeds())
    read = RequestHeaders.read(names, NAMES, minting=profile is Profile.SEQUENCE)
    exchange = Exchange()
    try:
        data = data or {"data" if grpc else "body": body}
        message = parser.parse(exchange.pending, data, read)
    except StatefulError as error:
        event = Event("r", EventKind.LAST, encode(error.to_body()), status=error.status)
        exchange.error = exchange.responder.whole(event)
        return exchange
    if isinstance(message, Event):
        exchange.answer = exchange.responder.whole(message).body
    else:
        exchange.submitted = message
    return exchange
