"""Clients of this package's servers: plain HTTP, and the package's own client over gRPC."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence

from benchmarks.clients.conversation import Turn
from benchmarks.clients.http_stream import HttpConnection, turn_of
from benchmarks.inputs import text_of
from ts_stateful.client import Session, connect
from ts_stateful.client.documents import encode, parse
from ts_stateful.protocol.answers import Opened, SessionInfo
from ts_stateful.protocol.requests import Close, Image, Info, Open, Prompt, Rewind
from ts_stateful.serving.ports import HOST
from ts_stateful.serving.server import LocalServer

__all__ = ["GrpcClient", "HttpClient"]


class HttpClient:
    """Raw HTTP on one kept connection; streams are server-sent events. A `Client`."""

    def __init__(self, server: LocalServer) -> None:
        self._connection = HttpConnection(HOST, server.ports.http)
        self._path = f"/predictions/{server.name}"

    def open(self, image: bytes | None) -> str:
        """See `Client`."""
        return self.timed_open(image)[1].session_id

    def timed_open(self, image: bytes | None) -> tuple[float, Opened]:
        """Open a session; return also the milliseconds until the answer."""
        images = () if image is None else (Image(base64=base64.b64encode(image).decode()),)
        taken_s, answer = self._connection.post(self._path, encode(Open(images=images)), {})
        return 1000 * taken_s, parse(answer, Opened)

    def ask(self, conversation_id: str, prompt: Sequence[int], max_new_tokens: int) -> Turn:
        """See `Client`."""
        command = Prompt(
            prompt=text_of(prompt), stream=True, max_new_tokens=max_new_tokens, ignore_eos=True
        )
        sent_at, events = self._connection.stream(
            self._path, encode(command), _header(conversation_id)
        )
        return turn_of(sent_at, events, "text")

    def info(self, conversation_id: str) -> SessionInfo:
        """Return the statistics of a session."""
        _, answer = self._connection.post(self._path, encode(Info()), _header(conversation_id))
        return parse(answer, SessionInfo)

    def rewind(self, conversation_id: str) -> None:
        """Forget every turn after the first."""
        self._connection.post(self._path, encode(Rewind(to_turn=1)), _header(conversation_id))

    def close(self, conversation_id: str) -> None:
        """See `Client`."""
        self._connection.post(self._path, encode(Close()), _header(conversation_id))

    def disconnect(self) -> None:
        """See `Client`."""
        self._connection.close()


class GrpcClient:
    """The package's own client over gRPC, as users have it. A `Client`."""

    def __init__(self, server: LocalServer, profile: str) -> None:
        self._server = connect(server.grpc_url, model=server.name, profile=profile)
        self._sessions: dict[str, Session] = {}

    def open(self, image: bytes | None) -> str:
        """See `Client`."""
        session = self._server.open(images=[] if image is None else [image])
        self._sessions[session.session_id] = session
        return session.session_id

    def ask(self, conversation_id: str, prompt: Sequence[int], max_new_tokens: int) -> Turn:
        """See `Client`."""
        session, text = self._sessions[conversation_id], text_of(prompt)
        sent_at = time.perf_counter()
        reply = session.prompt(text, max_new_tokens=max_new_tokens, ignore_eos=True)
        return Turn.of(sent_at, [(time.perf_counter(), piece) for piece in reply])

    def close(self, conversation_id: str) -> None:
        """See `Client`."""
        self._sessions.pop(conversation_id).close()

    def disconnect(self) -> None:
        """See `Client`."""
        self._server.close()


def _header(session_id: str) -> dict[str, str]:
    return {"ts_request_sequence_id": session_id}
