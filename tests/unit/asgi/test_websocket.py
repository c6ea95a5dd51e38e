"""Sessions over WebSocket. A script plays the engines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.fake_dispatcher import last, part
from tests.support.fake_front import FakeFront, client_of
from ts_stateful.protocol.events import Event, Submit

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


def streamed(message: Submit) -> list[Event]:
    """Answer a prompt by two events."""
    return [part(message.request_id, "re"), last(message.request_id, {"text": "d"})]


def received(count: int, **document: Any) -> list[dict[str, Any]]:
    """Send one request; return so many messages, none of which has a key twice."""
    front = FakeFront(script=streamed)
    with client_of(front).websocket_connect("/v1/sessions") as socket:
        socket.send_json(document)
        pairs = [json.loads(socket.receive_text(), object_pairs_hook=list) for _ in range(count)]
    assert all(len({key for key, _ in message}) == len(message) for message in pairs)
    return list(map(dict, pairs))


def test_every_event_of_a_prompt_is_a_document_with_its_id() -> None:
    """Which comes first."""
    messages = received(2, prompt="hi", stream=True, id="a")
    assert [next(iter(message)) for message in messages] == ["id", "id"]
    assert [message["text"] for message in messages] == ["re", "d"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tag", [{}, {"id": "a"}])
def test_a_chat_of_openais_is_refused(tag: dict[str, str], stream: bool) -> None:
    """Its chunks are no documents of the protocol and have ids of their own; the error has the path that takes it."""
    (message,) = received(1, **CHAT, **tag, stream=stream)
    assert message.get("id") == tag.get("id")
    error = dict(message["error"])
    assert (error["code"], error["param"]) == ("invalid_request", "messages")
    assert "/v1/chat/completions" in error["message"]
