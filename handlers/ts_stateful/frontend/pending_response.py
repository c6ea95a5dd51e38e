"""One request's answer, from the first event to the last: what is to be sent next.

Owns what goes out when: status, headers, pieces, and whether more follows. What is said is the business of the row's voice.
Knows nothing of batches or sockets.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from ts_stateful.frontend.dialects.dialect import JSON, Voice
from ts_stateful.frontend.dialects.own import OwnVoice
from ts_stateful.frontend.parsing.headers import HeaderNames
from ts_stateful.protocol.events import Event, EventKind

__all__ = ["PendingResponse", "Response", "RowKind"]

_RETRYABLE = (429, 503)


class RowKind(enum.Enum):
    """Who asks, which decides what an answer looks like."""

    HTTP = "http"
    GRPC = "grpc"
    DESCRIBE = "describe"  # the management API, over either


@dataclass(frozen=True)
class Response:
    """What TorchServe is to send for a row; `more` becomes `ts_stream_next`, None leaves that header out.

    Status, content type and headers only count in the first response of a row.
    """

    body: bytes = b""
    more: bool | None = None
    status: int = 200
    content_type: str = ""
    headers: dict[str, str] = field(default_factory=dict)


class PendingResponse:
    """The answer of one request. `streams` says that it comes as events, `num_bytes` is the size of the request.

    `names_session` says whether headers tell of its session.
    """

    def __init__(
        self,
        request_id: str,
        kind: RowKind,
        names: HeaderNames,
        *,
        streams: bool = False,
        num_bytes: int = 0,
        taken_at: float = 0.0,
    ) -> None:
        self.request_id = request_id
        self.kind = kind
        self.streams = streams
        self._voice: Voice = OwnVoice(framed=kind is RowKind.HTTP)
        self.names_session = True
        self.num_bytes = num_bytes
        self.taken_at = taken_at
        self.started = False  # a response has gone out
        self.done = False  # the last one has
        self.status = 200
        self.num_sent = 0  # bytes of bodies
        self._names = names
        self._queue: deque[Event] = deque()
        self._accepted: Event | None = None

    @property
    def is_http(self) -> bool:
        """Whether the client reads an HTTP response."""
        return self.kind is RowKind.HTTP

    @property
    def accepted(self) -> bool:
        """Whether the answer will be a 200 unless something breaks."""
        return self._accepted is not None

    def speak(self, voice: Voice) -> None:
        """From now on everything is said in this voice; before anything was sent."""
        self._voice = voice

    def add(self, events: Iterable[Event]) -> None:
        """Takes the next events."""
        self._queue.extend(events)

    def next(self, *, hold: bool = False) -> Response | None:
        """The next response, or None if there is nothing to send.

        `hold` asks for a response, empty if need be, as soon as the status is settled and then every time: the frontend
        looks for a client that has gone only when it gets something for it.
        """
        if self.done:
            return None
        return self._noted(self._next_http(hold=hold) if self.is_http else self._next_message())

    def begin(self) -> Response:
        """A response that says nothing, with more to come; settles an HTTP answer's status as 200 if nothing else has.

        A gRPC client gets a message: an event without text in a stream, else an empty one.
        """
        if self.is_http and not self.started:
            response = self._first(self._accepted, b"")
        elif self.is_http or not self.streams:
            response = Response(more=True)
        else:
            response = Response(self._voice.idle, True)
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
        """One event per message over gRPC; an acceptance is none."""
        while self._queue:
            event = self._queue.popleft()
            if event.kind is EventKind.LAST:
                return self._last_message(event)
            if event.kind is EventKind.PART and self.streams:
                return Response(self._voice.piece(event), True)
            self._accepted = event
        return None

    def _last_message(self, last: Event) -> Response:
        if self.streams and (self.started or not _fails(last)):
            return Response(self._voice.piece(last), False, last.status, JSON)
        whole = self._voice.whole(last)
        return Response(whole.body, False, whole.status, whole.content_type)

    def _next_http(self, *, hold: bool) -> Response | None:
        events, self._queue = list(self._queue), deque()
        for event in events:
            if event.kind is not EventKind.LAST:
                self._accepted = event
        last = events[-1] if events and events[-1].kind is EventKind.LAST else None
        if last is not None and not self.started and (_fails(last) or not self.streams):
            return self._whole(last)
        said = [event for event in events if self.streams and event.kind is not EventKind.ACCEPTED]
        parts = b"".join(map(self._voice.piece, said))
        if last is not None and not self.started:
            return Response(parts, None, 200, self._voice.stream_type, self._session_headers(last))
        if last is not None:
            return Response(parts if self.streams else self._voice.whole(last).body, False)
        if self.started:
            return Response(parts, True) if parts or hold else None
        if self.accepted and (self.streams or hold):
            return self._first(self._accepted, parts)
        return None

    def _whole(self, last: Event) -> Response:
        headers = self._session_headers(last)
        retry_after_s = _retry_after_s(last)
        if retry_after_s is not None:
            headers["Retry-After"] = str(retry_after_s)
        whole = self._voice.whole(last)
        return Response(whole.body, None, whole.status, whole.content_type, headers)

    def _first(self, event: Event | None, body: bytes) -> Response:
        headers = {} if event is None else self._session_headers(event)
        return Response(body, True, 200, self._voice.stream_type if self.streams else JSON, headers)

    def _session_headers(self, event: Event) -> dict[str, str]:
        return self._names.of_answer(event) if self.names_session else {}


def _fails(last: Event) -> bool:
    return last.status != 200


class _Refused(msgspec.Struct):
    retry_after_s: float | None = None


class _Refusal(msgspec.Struct):
    error: _Refused


_refusal = msgspec.json.Decoder(_Refusal)


def _retry_after_s(last: Event) -> int | None:
    """Whole seconds, at least 1, where an error says how long to wait."""
    if last.status not in _RETRYABLE:
        return None
    retry_after_s = _refusal.decode(last.body).error.retry_after_s
    return None if retry_after_s is None else max(1, math.ceil(retry_after_s))
