"""Server-sent events over one persistent connection, with the time of each.

Nothing is parsed while a stream runs, because the client shares the processors with what it measures.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from benchmarks.clients.conversation import Turn
from ts_stateful.client.transports.sse import EventParser

__all__ = ["HttpConnection", "turn_of"]

_TIMEOUT_S = 120.0
_IDLE_S = 4.0  # a server may close a connection that was not used for longer
_DONE = b"[DONE]"  # OpenAI's end of a stream
_JSON = {"Content-Type": "application/json"}


class Event(NamedTuple):
    """An event's document, and the time of its last byte."""

    at: float
    document: dict[str, Any]


class HttpConnection:
    """A persistent HTTP connection to `host:port`."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        self._used_at = time.monotonic()

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[float, bytes]:
        """Return the seconds until one answer, and its body."""
        self._wake()
        begin = time.perf_counter()
        response = self._send(path, body, headers)
        answer = response.read()
        self._used_at = time.monotonic()
        return time.perf_counter() - begin, answer

    def stream(
        self, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[float, list[Event]]:
        """Return the time of sending the request, and the events of its answer."""
        self._wake()
        sent_at = time.perf_counter()
        chunks = []
        # Closed by `with`: `read1` leaves one open that has a length, as TorchServe's has if all is sent at once.
        with self._send(path, body, headers) as response:
            while chunk := response.read1(65536):
                chunks.append((time.perf_counter(), chunk))
        self._used_at = time.monotonic()
        parser = EventParser()
        return sent_at, [
            Event(at, msgspec.json.decode(data))
            for at, chunk in chunks
            for data in parser.feed(chunk)
            if data != _DONE
        ]

    def renew(self) -> None:
        """Reconnect, for servers that end a connection with a stream."""
        self._connection.close()
        self._connection.connect()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _send(self, path: str, body: bytes, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        self._connection.request("POST", path, body, {**_JSON, **headers})
        response = self._connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read()[:500]!r}")
        return response

    def _wake(self) -> None:
        """Reconnect before the clock starts if the server may have closed the connection."""
        if time.monotonic() > self._used_at + _IDLE_S:
            self.renew()


def turn_of(sent_at: float, events: list[Event], field: str) -> Turn:
    """Return the turn in events whose text is in `field`.

    Raises:
        RuntimeError: an event is an error.
    """
    for event in events:
        if "error" in event.document:
            raise RuntimeError(f"rejected: {event.document['error']}")
    timing = events[-1].document.get("timing", {}) if events else {}
    pieces = [(event.at, event.document.get(field, "")) for event in events]
    return Turn.of(sent_at, pieces, timing.get("first_token_ms"))
