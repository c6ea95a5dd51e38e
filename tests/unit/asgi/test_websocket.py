"""Sessions over WebSocket. A script plays the engines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.fake_dispatcher import last, part
from tests.support.fake_front import FakeFront, client_of
from ts_stateful.protocol.errors import ServerBusy, StatefulError
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.requests import Step

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


COUNTER = {
    "model": "m.py:M",
    "inputs": [{"name": "x", "datatype": "INT64", "shape": [1]}],
    "outputs": [{"name": "y"}],
    "states": [{"name": "h"}],
}
ONE = {"inputs": [{"name": "x", "data": [1]}], "session_id": "a"}


class Echo(FakeFront):
    """A model with recurrent state. An answer has the type and the `id` of the command that came to the engine."""

    takes_batches = True

    def __init__(self, room: StatefulError | None = None) -> None:
        super().__init__("m", {"handler": COUNTER}, self._answer)
        self._room = room

    def check_room(self, count: int = 1) -> None:
        """Have no room if the test says so."""
        if self._room is not None:
            raise self._room

    @staticmethod
    def _answer(message: Submit) -> list[Event]:
        answer = {"type": type(message.command).__name__}
        if isinstance(message.command, Step) and message.command.id is not None:
            answer["id"] = message.command.id
        return [last(message.request_id, answer)]


def echoed(document: dict[str, Any], room: StatefulError | None = None) -> list[tuple[str, Any]]:
    """Send a request to a model with recurrent state; return the pairs of its answer."""
    with client_of(Echo(room)).websocket_connect("/v1/sessions/m") as socket:
        socket.send_json(document)
        pairs = json.loads(socket.receive_text(), object_pairs_hook=list)
    return [(key, value) for key, value in pairs]


@pytest.mark.parametrize("tag", [7, "a"])
@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (ONE, "Step"),
        ({"type": "info", "session_id": "a"}, "Info"),
        ({"type": "close", "session_id": "a"}, "Close"),
        ({"type": "hello"}, "Hello"),
    ],
)
def test_every_request_to_a_recurrent_model_may_have_an_id(
    document: dict[str, Any], kind: str, tag: int | str
) -> None:
    """It comes first in the answer, and once in that of a step."""
    assert echoed({**document, "id": tag}) == [("id", tag), ("type", kind)]


def test_an_error_of_a_recurrent_model_has_the_id() -> None:
    """Of a request that the model refuses, and of one for which there is no room."""
    refusals = [
        echoed({"inputs": [], "id": 7}),
        echoed({**ONE, "id": 7}, ServerBusy("no room")),
        echoed({**ONE, "unknown": 1, "id": 7}),
    ]
    assert [[key for key, _ in pairs] for pairs in refusals] == [["id", "error"]] * 3


def test_a_batch_may_have_an_id() -> None:
    """Its steps keep those of their own."""
    pairs = echoed({"type": "batch", "id": 7, "requests": [{**ONE, "id": "x"}, ONE]})
    first, second = [("type", "Step"), ("id", "x")], [("type", "Step")]
    answers = [[(key, value) for key, value in answer] for answer in dict(pairs)["answers"]]
    assert ([key for key, _ in pairs], answers) == (["id", "answers"], [first, second])
    refused = dict(echoed({"type": "batch", "id": 7, "requests": [], "other": 1}))
    assert (refused["id"], dict(refused["error"])["code"]) == (7, "invalid_request")
