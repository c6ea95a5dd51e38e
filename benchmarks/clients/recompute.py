"""A client of the baseline (`recompute_handler`)."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Sequence

from benchmarks.clients.conversation import Turn
from benchmarks.clients.http_stream import HttpConnection, turn_of
from benchmarks.inputs import text_of
from ts_stateful.serving.ports import HOST
from ts_stateful.serving.server import LocalServer

__all__ = ["RecomputeClient"]


class RecomputeClient:
    """A `Client`; the image goes with the first prompt, where the server expects it."""

    def __init__(self, server: LocalServer) -> None:
        self._connection = HttpConnection(HOST, server.ports.http)
        self._path = f"/predictions/{server.name}"
        self._images: dict[str, bytes] = {}

    def open(self, image: bytes | None) -> str:
        """See `Client`; no request is sent."""
        assert image is not None, "the baseline's conversations are about an image"
        conversation_id = uuid.uuid4().hex
        self._images[conversation_id] = image
        return conversation_id

    def ask(self, conversation_id: str, prompt: Sequence[int], max_new_tokens: int) -> Turn:
        """See `Client`."""
        request = {
            "session_id": conversation_id,
            "prompt": text_of(prompt),
            "max_new_tokens": max_new_tokens,
        }
        image = self._images.pop(conversation_id, None)
        if image is not None:
            request["image"] = base64.b64encode(image).decode()
        sent_at, events = self._connection.stream(self._path, json.dumps(request).encode(), {})
        return turn_of(sent_at, events, "text")

    def close(self, conversation_id: str) -> None:
        """See `Client`; the baseline keeps a tensor and the text until its process ends."""

    def disconnect(self) -> None:
        """See `Client`."""
        self._connection.close()
