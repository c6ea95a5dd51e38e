"""The answer to one request, from its first event to its last."""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from ts_stateful.frontend.audit import Trace
from ts_stateful.frontend.dialects.dialect import JSON, Responder
from ts_stateful.frontend.dialects.own import OwnResponder
from ts_stateful.frontend.parsing.correlation import Correlation
from ts_stateful.frontend.parsing.headers import HeaderNames
from ts_stateful.principals.namespace import NO_NAMESPACE
from ts_stateful.protocol.errors import Unauthenticated
from ts_stateful.protocol.events import Event, EventKind

__all__ = ["IGNORED", "ClientKind", "PendingResponse", "Response"]

IGNORED: Final = "x-ts-stateful-ignored"
"""The header with the names of a request's fields that had no effect."""

_UNBUFFERED = {"X-Accel-Buffering": "no"}  # nginx would keep 4 KB of a stream back

_RETRYABLE = (429, 503)


class ClientKind(enum.Enum):
    """The kind of client, which decides the form of an answer."""

    HTTP = "http"
    GRPC = "grpc"
    DESCRIBE = "describe"  # the management API, over either


class Response(Struct, frozen=True):
    """A message that TorchServe sends; `more` becomes `ts_stream_next`, and None leaves that header out.

    Status, content type and headers count in the first response to a request only.
    """

    body: bytes = b""
    more: bool | None = None
    status: int = 200
    content_type: str = ""
    headers: dict[str, str] = {}


class PendingResponse:
    """The answer to one request of `num_bytes`, received at `taken_at` (monotonic seconds)."""

    def __init__(
        self,
        request_id: str,
        kind: ClientKind,
        names: HeaderNames,
        *,
        num_bytes: int = 0,
        taken_at: float = 0.0,
    ) -> None:
        self.request_id = request_id
        self.known = Correlation(request_id)
        self.kind = kind
        self.num_bytes = num_bytes
        self.taken_at = taken_at
        self.sent_at = -math.inf  # of the last response (monotonic seconds)
        self.namespace = NO_NAMESPACE
        self.trace = Trace()
        self.responder: Responder = OwnResponder(framed=kind is ClientKind.HTTP)
        self.ignored: tuple[str, ...] = ()  # fields of the request
        self.streams = False  # the answer is a stream of events
        self.names_session = True  # headers name the session
        self.started = False  # the first response was returned
        self.done = False  # the last response was returned
        self.status = 200
        self.num_sent = 0  # bytes of bodies
        self.last_body = b""  # the engine's last document
        self._names = names
        self._queue: deque[Event] = deque()
        self._accepted: Event | None = None

    @property
    def is_http(self) -> bool:
        """Return True if the client reads an HTTP response."""
        return self.kind is ClientKind.HTTP

    @property
    def accepted(self) -> bool:
        """Return True if the status will be 200 unless something fails."""
        return self._accepted is not None

    def add(self, events: Iterable[Event]) -> None:
        """Add the next events."""
        for event in map(self.namespace.outward, events):
            self.trace.note(event)
            if event.kind is EventKind.LAST:
                self.last_body = event.body
            if event.kind is EventKind.CHOICE and not self.streams:
                self.responder.keep(event)
            elif event.kind is not EventKind.ADOPTED:
                self._queue.append(event)

    def next(self, *, hold: bool = False, late: bool = False) -> Response | None:
        """Return the next response, or None if there is nothing to send.

        With `hold`, every call after the acceptance returns a response, which may be empty. TorchServe's frontend detects a
        disconnected client only when it has something to send. Without it, a `late` response waits for more than an acceptance.
        """
        is_early = late and not hold and all(e.kind is EventKind.ACCEPTED for e in self._queue)
        if self.done or is_early:
            return None
        return self._noted(self._next_http(hold=hold) if self.is_http else self._next_message())

    def begin(self) -> Response:
        """Return an empty response with more to follow; an HTTP status that is still open becomes 200.

        A gRPC client gets a message: in a stream an event without text, else an empty one.
        """
        if self.is_http and not self.started:
            response = self._first(self._accepted, b"")
        elif self.is_http or not self.streams:
            response = Response(more=True)
        else:
            response = Response(self.responder.idle, True)
        self.started = True
        return response

    def _noted(self, response: Response | None) -> Response | None:
        if response is not None:
            self.status = self.status if self.started else response.status
            self.started = True
            self.done = response.more is not True
            self.num_sent += len(response.body)
        return response

    def _next_message(self) -> Response | None:
        """Return the next event as a gRPC message; an acceptance is no message."""
        while self._queue:
            event = self._queue.popleft()
            if event.kind is EventKind.LAST:
                return self._last_message(event)
            if event.kind is EventKind.ACCEPTED:
                self._accepted = event
            if self.streams and self._shows(event):
                return Response(self.responder.piece(event), True)
        return None

    def _last_message(self, last: Event) -> Response:
        if self.streams and (self.started or not _fails(last)):
            return Response(self.responder.piece(last), False, last.status, JSON)
        whole = self.responder.whole(last)
        return Response(whole.body, False, whole.status, whole.content_type, dict(whole.headers))

    def _next_http(self, *, hold: bool) -> Response | None:
        events, self._queue = list(self._queue), deque()
        for event in events:
            if event.kind is not EventKind.LAST:
                self._accepted = event
        last = events[-1] if events and events[-1].kind is EventKind.LAST else None
        if last is not None and not self.started and (_fails(last) or not self.streams):
            return self._whole(last)
        shown = [event for event in events if self.streams and self._shows(event)]
        parts = b"".join(map(self.responder.piece, shown))
        if last is not None and not self.started:
            return Response(parts, None, 200, self.responder.stream_type, self._headers(last))
        if last is not None:
            return Response(parts if self.streams else self._late(last), False)
        if self.started:
            return Response(parts, True) if parts or hold else None
        if self.accepted and (self.streams or hold):
            return self._first(self._accepted, parts)
        return None

    def _shows(self, event: Event) -> bool:
        return event.kind is not EventKind.ACCEPTED or self.responder.announces

    def _whole(self, last: Event) -> Response:
        headers = self._headers(last)
        retry_after_s = _retry_after_s(last)
        if retry_after_s is not None:
            headers["Retry-After"] = str(retry_after_s)
        if last.status == Unauthenticated.status:
            headers["WWW-Authenticate"] = "Bearer"  # required with every 401 by RFC 9110
        whole = self.responder.whole(last)
        return Response(
            whole.body, None, whole.status, whole.content_type, headers | dict(whole.headers)
        )

    def _late(self, last: Event) -> bytes:
        """Return the body of an answer whose HTTP headers were sent before it."""
        whole = self.responder.whole(last)
        return self.responder.piece(last) if whole.headers else whole.body

    def _first(self, event: Event | None, body: bytes) -> Response:
        headers = {} if event is None else self._headers(event)
        if self.streams:
            return Response(body, True, 200, self.responder.stream_type, headers | _UNBUFFERED)
        return Response(body, True, 200, JSON, headers)

    def _headers(self, event: Event) -> dict[str, str]:
        headers = self._names.of_answer(event) if self.names_session else {}
        return headers | {IGNORED: ", ".join(self.ignored)} if self.ignored else headers


def _fails(last: Event) -> bool:
    return last.status != 200


def _retry_after_s(last: Event) -> int | None:
    """Return the `retry_after_s` of an error in whole seconds, at least 1."""
    if last.status not in _RETRYABLE:
        return None
    retry_after_s = msgspec.json.decode(last.body)["error"].get("retry_after_s")
    return None if retry_after_s is None else max(1, math.ceil(retry_after_s))
