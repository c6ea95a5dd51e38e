"""A client of `llama-server`: a conversation is one growing prompt of token ids, as this package's template makes them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from benchmarks.clients.conversation import Turn
from benchmarks.clients.http_stream import HttpConnection, turn_of
from benchmarks.inputs import ids_of
from benchmarks.llama_server import LlamaServer
from benchmarks.model import ASSISTANT, BEGIN, END, SPECIAL, USER
from ts_stateful.serving.ports import HOST

__all__ = ["LlamaClient"]

_BEGIN, _END, _USER, _ASSISTANT = map(SPECIAL.index, (BEGIN, END, USER, ASSISTANT))


class LlamaClient:
    """A `Client`; the id of a conversation is the number of its slot."""

    def __init__(self, server: LlamaServer) -> None:
        self._server = server
        self._connection = HttpConnection(HOST, server.port)
        self._ids: dict[str, list[int]] = {}

    def open(self, image: bytes | None) -> str:
        """See `Client`; no request is sent."""
        assert image is None, "the text part takes no images"
        slot = str(self._server.free_slots.pop())
        self._ids[slot] = []
        return slot

    def ask(self, conversation_id: str, prompt: Sequence[int], max_new_tokens: int) -> Turn:
        """See `Client`."""
        ids = self._ids[conversation_id]
        ids += [_END if ids else _BEGIN, _USER, *prompt, _END, _ASSISTANT]
        request = {
            "prompt": ids,
            "n_predict": max_new_tokens,
            "id_slot": int(conversation_id),
            "cache_prompt": True,
            "ignore_eos": True,
            "temperature": 0.0,
            "samplers": ["temperature"],
            "stream": True,
        }
        body = msgspec.json.encode(request)
        self._connection.renew()
        sent_at, events = self._connection.stream("/completion", body, {})
        for event in events:
            ids += ids_of(event.document.get("content", ""))
        return turn_of(sent_at, events, "content")

    def close(self, conversation_id: str) -> None:
        """See `Client`: another conversation may take its slot."""
        del self._ids[conversation_id]
        self._server.free_slots.append(int(conversation_id))

    def disconnect(self) -> None:
        """See `Client`."""
        self._connection.close()
