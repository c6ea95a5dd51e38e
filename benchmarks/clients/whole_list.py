"""A client of OpenAI's dialect that sends all messages each time, without a session header."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.clients.conversation import Turn
from benchmarks.clients.http_stream import HttpConnection
from benchmarks.inputs import text_of
from ts_stateful.serving.ports import HOST
from ts_stateful.serving.server import LocalServer

__all__ = ["WholeListClient"]


class WholeListClient:
    """A `Client`; the id of a conversation is known here only."""

    def __init__(self, server: LocalServer) -> None:
        self._connection = HttpConnection(HOST, server.ports.http)
        self._path = f"/predictions/{server.name}/1.0/v1/chat/completions"
        self._messages: dict[str, list[dict[str, Any]]] = {}
        self._images: dict[str, bytes] = {}  # of conversations without a message
        self._num_opened = 0

    def open(self, image: bytes | None) -> str:
        """See `Client`; no request is sent."""
        self._num_opened += 1
        name = str(self._num_opened)
        self._messages[name] = []
        if image is not None:
            self._images[name] = image
        return name

    def ask(self, conversation_id: str, prompt: Sequence[int], max_new_tokens: int) -> Turn:
        """See `Client`."""
        messages = self._messages[conversation_id]
        parts: list[dict[str, Any]] = [{"type": "text", "text": text_of(prompt)}]
        image = self._images.pop(conversation_id, None)
        if image is not None:
            url = f"data:image/jpeg;base64,{base64.b64encode(image).decode()}"
            parts.insert(0, {"type": "image_url", "image_url": {"url": url}})
        messages.append({"role": "user", "content": parts})
        request = {
            "messages": messages,
            "max_tokens": max_new_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        sent_at, events = self._connection.stream(self._path, msgspec.json.encode(request), {})
        deltas = [(at, one["choices"][0]["delta"].get("content") or "") for at, one in events]
        turn = Turn.of(sent_at, deltas)
        messages.append({"role": "assistant", "content": turn.text})
        return turn

    def close(self, conversation_id: str) -> None:
        """See `Client`; no request is sent."""
        del self._messages[conversation_id]

    def disconnect(self) -> None:
        """See `Client`."""
        self._connection.close()
