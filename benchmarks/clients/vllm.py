"""A client of vLLM: a conversation is one growing prompt of token ids, as this package's template makes them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from benchmarks.clients.conversation import Turn
from benchmarks.clients.http_stream import HttpConnection
from benchmarks.inputs import ids_of
from benchmarks.model import ASSISTANT, BEGIN, END, SPECIAL, USER
from benchmarks.vllm_server import VllmServer
from ts_stateful.serving.ports import HOST

__all__ = ["VllmClient"]

_BEGIN, _END, _USER, _ASSISTANT = map(SPECIAL.index, (BEGIN, END, USER, ASSISTANT))


class VllmClient:
    """A `Client`; the server finds the cached prefix of each prompt by itself."""

    def __init__(self, server: VllmServer) -> None:
        self._connection = HttpConnection(HOST, server.port)
        self._numbers = itertools.count()
        self._ids: dict[str, list[int]] = {}

    def open(self, image: bytes | None) -> str:
        """See `Client`; no request is sent."""
        assert image is None, "the text part takes no images"
        name = str(next(self._numbers))
        self._ids[name] = []
        return name

    def ask(self, conversation_id: str, prompt: Sequence[int], max_new_tokens: int) -> Turn:
        """See `Client`."""
        ids = self._ids[conversation_id]
        ids += [_END if ids else _BEGIN, _USER, *prompt, _END, _ASSISTANT]
        request = {
            "model": "text",
            "prompt": ids,
            "max_tokens": max_new_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
        }
        self._connection.renew()
        body = msgspec.json.encode(request)
        sent_at, events = self._connection.stream("/v1/completions", body, {})
        pieces = [(event.at, event.document["choices"][0]["text"]) for event in events]
        for _, text in pieces:
            ids += ids_of(text)
        return Turn.of(sent_at, pieces, None)

    def close(self, conversation_id: str) -> None:
        """See `Client`."""
        del self._ids[conversation_id]

    def disconnect(self) -> None:
        """See `Client`."""
        self._connection.close()
