"""Requests with nothing of ours in between: what the client library does not do, because no good client would.

Owns connections that break off, turns that are pulled and left alone, and requests that make no sense. A request that a killed
worker takes along is sent again, as every client of TorchServe has to, and so is one whose error says that it may be; one that
fails at any other time is a failure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import grpc
import httpx

from tests.e2e.speak import HEADER, Speaker
from tests.soak.outages import Outages
from tests.soak.plan import DEADLINE_S
from tests.soak.tally import Tally, Wrong, check
from ts_stateful.protocol.error_bodies import error_from_body
from ts_stateful.protocol.errors import StatefulError

__all__ = ["Document", "Heard", "Raw"]

Document = dict[str, Any]  # JSON
_T = TypeVar("_T")
_PAUSE_S = 0.2


class _Broken(Exception):
    """TorchServe itself has answered, or nobody."""


class Heard(NamedTuple):
    """What came of a stream; `last` is its last event, if that was waited for."""

    text: str
    last: Document | None


class Raw:
    """Plain HTTP and gRPC to one server; for one thread."""

    def __init__(self, speaker: Speaker, outages: Outages, tally: Tally) -> None:
        self._speaker = speaker
        self._outages = outages
        self._tally = tally

    def refused(self, session_id: str | None = None, **options: Any) -> str:
        """The code of the error that a request gets; empty if it gets none. `options` are those of `Speaker.post`."""
        answer = self._persistently(
            lambda: _read(self._speaker.post(session=session_id, **options))
        )
        error = error_from_body(answer)
        return "" if error is None else error.code

    def ask(self, document: Document, session_id: str | None = None) -> Document:
        """The answer to a request.

        Raises:
            StatefulError: the server's error.
        """
        return self._persistently(
            lambda: _good(_read(self._speaker.post(document, session=session_id)))
        )

    def hear(self, document: Document, session_id: str, *, num_events: int | None = None) -> Heard:
        """A streamed turn: all of it or, with `num_events`, its first ones, behind which the connection is broken off.

        Raises:
            StatefulError: the server's error.
            Wrong: the stream has no end, or goes on behind it.
        """
        return self._persistently(lambda: self._hear(document, session_id, num_events))

    def pull_and_leave(self, document: Document, session_id: str) -> Document:
        """The first answer to a turn over gRPC in the continuous profile, behind which nobody asks for more."""

        def call() -> Document:
            with self._speaker.stub() as stub:
                message = self._speaker.message({**document, "session_id": session_id})
                reply = stub.Predictions(message, timeout=DEADLINE_S)
            return _good(json.loads(reply.prediction))

        return self._persistently(call)

    def _hear(self, document: Document, session_id: str, num_events: int | None) -> Heard:
        speaker, events = self._speaker, list[Document]()
        with speaker.http.stream(
            "POST", speaker.url, json=document, headers={HEADER: session_id}
        ) as response:
            if response.status_code != 200:
                response.read()
                answer = _good(_read(response))
                raise Wrong(f"{response.status_code}: {answer}")
            for event in _events(response):
                events.append(_good(event))
                if len(events) == num_events:
                    break
        text = "".join(event["text"] for event in events)
        ends = [number for number, event in enumerate(events) if event.get("finish_reason")]
        if num_events is None and not ends:
            raise _Broken("a stream ended before its last event")
        check(ends in ([], [len(events) - 1]), f"a stream went on behind its end: {events[-3:]}")
        return Heard(text, events[-1] if ends else None)

    def _persistently(self, call: Callable[[], _T]) -> _T:
        began_at = time.monotonic()
        while True:
            try:
                return call()
            except StatefulError as error:
                if not error.retryable or time.monotonic() - began_at > DEADLINE_S:
                    raise
                self._tally.repeated(error)
            except (_Broken, httpx.TransportError, grpc.RpcError) as error:
                late = time.monotonic() - began_at > DEADLINE_S
                if late or not self._outages.touched(began_at):
                    raise Wrong(f"no answer: {type(error).__name__}: {error}") from error
                self._tally.repeated(error)
            time.sleep(_PAUSE_S)


def _events(response: httpx.Response) -> Iterator[Document]:
    for line in response.iter_lines():
        if line:
            yield json.loads(line.removeprefix("data: "))


def _good(document: Document) -> Document:
    """The document; raises the `StatefulError` that it is."""
    error = error_from_body(document)
    if error is not None:
        raise error
    return document


def _read(response: httpx.Response) -> Document:
    try:
        document = response.json()
    except ValueError:
        document = None
    # TorchServe's own errors have a number where ours have an object.
    if not isinstance(document, dict) or "code" in document:
        raise _Broken(f"{response.status_code}: {response.text[:200]}")
    return document
