"""Answers over HTTP, and clients that leave in the middle of one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from starlette.types import Message

from tests.support.fake_dispatcher import refused
from tests.support.fake_front import FakeFront, client_of
from ts_stateful.asgi.body import BodyReader
from ts_stateful.asgi.http import Predictions, joined_lists
from ts_stateful.asgi.models import Models
from ts_stateful.frontend.parsing.correlation import Correlation
from ts_stateful.frontend.pending_response import Response
from ts_stateful.protocol.events import Event, Submit

PATIENCE_S = 20.0
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
COUNTER = {
    "model": "m.py:M",
    "inputs": [{"name": "x", "datatype": "INT64", "shape": [1]}],
    "outputs": [{"name": "y"}],
    "states": [{"name": "h"}],
}


class Endless(Predictions):
    """A front of one answer that never ends. It counts what it has made, and notes that it was closed."""

    def __init__(self, write_s: float = 60.0) -> None:
        super().__init__(cast("Any", None), cast("Any", None), write_s)
        self.num_made = 0
        self.is_closed = False

    def _exchange(self, model: Any, arrival: Any) -> AsyncGenerator[Response, None]:
        return self._responses()

    async def _responses(self) -> AsyncGenerator[Response, None]:
        try:
            while True:
                self.num_made += 1
                yield Response(b"x", more=True)
                await asyncio.sleep(0)
        finally:
            self.is_closed = True


async def pause(num_turns: int) -> None:
    """Let the event loop turn so often."""
    for _ in range(num_turns):
        await asyncio.sleep(0)


async def served(front: Endless, receive: Any, send: Any) -> bool:
    """Serve one answer; return True if it ended."""
    task = asyncio.ensure_future(front._serve(cast("Any", None), cast("Any", None), receive, send))
    done, _ = await asyncio.wait({task}, timeout=PATIENCE_S)
    return bool(done)


@pytest.mark.parametrize("writing", range(5))
def test_a_client_that_leaves_at_any_moment_ends_its_answer(writing: int) -> None:
    """Also at the very moment when a part of it has been written."""

    async def run(leaves_after: int) -> None:
        async def receive() -> Message:
            await pause(leaves_after)
            return {"type": "http.disconnect"}

        async def send(_message: Message) -> None:
            await pause(writing)

        front = Endless()
        assert await served(front, receive, send), f"after {leaves_after} turns of the loop"
        assert front.is_closed

    for turns in range(1, 40):
        asyncio.run(run(turns))


@pytest.mark.parametrize("unread", ["http.response.start", "http.response.body"])
def test_a_client_that_reads_nothing_counts_as_gone(unread: str) -> None:
    """After `write_s`; its connection is still open. An earlier answer may be what it has not read."""

    async def run() -> None:
        never = asyncio.Event()

        async def receive() -> Message:
            await never.wait()
            return {}

        async def send(message: Message) -> None:
            if message["type"] == unread:
                await never.wait()

        front = Endless(write_s=0.01)
        assert await served(front, receive, send)
        assert (front.num_made, front.is_closed) == (1, True)

    asyncio.run(run())


@pytest.mark.parametrize("refuses", [(), (1,), (0, 1, 2)])
def test_the_list_of_models_has_those_that_answer(refuses: tuple[int, ...]) -> None:
    """A caller may not be allowed to see one of them."""

    async def answer(number: int) -> AsyncGenerator[Response, None]:
        if number in refuses:
            yield Response(b"{}", status=401 + number)
        else:
            yield Response(b'{"object":"list","data":[{"id":"%d"}]}' % number)

    async def run() -> Response:
        return await anext(joined_lists([answer(number) for number in range(3)]))

    response = asyncio.run(run())
    if len(refuses) == 3:
        assert response == Response(b"{}", status=401)
        return
    listed = json.loads(response.body)
    shown = [str(number) for number in range(3) if number not in refuses]
    assert (listed["object"], [each["id"] for each in listed["data"]]) == ("list", shown)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("v1/chat/completions", "POST"),
        ("v1/completions", "POST"),
        ("v1/models", "GET, HEAD"),
        ("v1/models/chat", "GET, HEAD"),
        ("v1/responses", "POST"),
        ("v1/responses/resp_a_1", "GET, POST, DELETE"),
        ("v1/responses/resp_a_1/cancel", "POST"),
        ("v1/responses/resp_a_1/input_items", "GET, POST"),
        ("v1/conversations/conv_a/items", "GET, POST"),
        ("v1/conversations/conv_a/items/msg_1", "GET, POST, DELETE"),
        ("openai/deployments/chat/chat/completions", "POST"),
        ("openai/v1/models", "GET, HEAD"),
        ("predictions/chat", "GET, POST, PUT"),
        ("predictions/chat/1.0", "GET, POST, PUT"),
        ("predictions/chat/v1/chat/completions", "POST"),
        ("predictions/chat/1.0/v1/responses/resp_a_1", "GET, POST, DELETE"),
        ("invocations", "POST"),
    ],
)
def test_a_path_takes_its_methods_alone(path: str, allowed: str) -> None:
    """All others are refused before an engine sees them, and the header has those that it takes."""
    front = FakeFront()
    others = set(METHODS) - set(allowed.split(", "))
    with client_of(front) as client:
        for method in others:
            answer = client.request(method, f"/{path}", json=CHAT)
            assert (answer.status_code, answer.headers["allow"]) == (405, allowed), method
        assert not front.dispatcher.submitted
        for method in allowed.split(", "):
            assert client.request(method, f"/{path}", json=CHAT).status_code != 405, method


@pytest.mark.parametrize("base", ["/v1", "/predictions/chat/1.0/v1", "/predictions/chat/v1"])
@pytest.mark.parametrize(
    ("status", "code", "param", "options"),
    [
        (400, "invalid_request", "origin", {"headers": {"Origin": "https://evil.example"}}),
        (413, "media_too_large", "body", {"content": b"x" * 1001}),
        (400, "invalid_request", "body", {"headers": {"Content-Type": "multipart/form-data"}}),
        (405, "method_not_allowed", None, {"method": "DELETE"}),
        (401, "unauthenticated", "X-Principal", {}),
    ],
)
def test_errors_on_openais_paths_are_openais(
    base: str, status: int, code: str, param: str | None, options: dict[str, Any]
) -> None:
    """Also those that are found before a model reads the request."""
    closed = {"handler": {"auth": {"mode": "header", "header": "X-Principal"}}}
    client = client_of(FakeFront(document=closed if status == 401 else {}))
    options = {"method": "POST", "content": b"{}", **options}
    answer = client.request(url=f"{base}/chat/completions", **options)
    error = answer.json()["error"]
    assert answer.status_code == status
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert error["param"] == param


def test_a_body_that_does_not_come_is_openais_error() -> None:
    """On OpenAI's paths; on others it is the protocol's."""

    async def run(front: FakeFront, rest: str) -> list[Message]:
        sent: list[Message] = []

        async def receive() -> Message:
            await asyncio.Event().wait()
            return {}

        async def send(message: Message) -> None:
            sent.append(message)

        scope: Any = {"type": "http", "method": "POST", "path": "/", "query_string": b""}
        scope |= {"headers": [], "path_params": {"model": "chat", "rest": rest}}
        scope["correlation"] = Correlation("r")
        predictions = Predictions(Models([cast("Any", front)]), BodyReader(1000, 0.0))
        await predictions(scope, receive, send)
        return sent

    for rest, keys in (
        ("v1/chat/completions", {"message", "type", "param", "code"}),
        ("1.0", {"message", "status", "retryable", "code"}),
    ):
        start, body = asyncio.run(run(FakeFront(), rest))
        assert start["status"] == 408
        assert json.loads(body["body"])["error"].keys() == keys


@pytest.mark.parametrize("path", ["/predictions/nope/v1/chat/completions", "/v1/chat/completions"])
def test_an_unknown_model_is_openais_error(path: str) -> None:
    """It names all models that the server has. An empty name, which SageMaker's clients send, is no name."""
    with client_of(FakeFront("chat"), FakeFront("other")) as client:
        answer = client.post(path, json={**CHAT, "model": "nope"})
        version = client.post("/predictions/chat/2.0/v1/chat/completions", json=CHAT)
        assert client.get("/v1/models/nope").json() == answer.json()
        assert client.get("/v1/models/other").json()["id"] == "other"
        assert client.post("/v1/chat/completions", json={**CHAT, "model": ""}).status_code == 200
    error, other = answer.json()["error"], version.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "this server has chat, other" in error["message"]
    assert (other["type"], other["param"]) == ("invalid_request_error", "version")


@pytest.mark.parametrize("path", ["responses/resp_a_1", "conversations/conv_a", "models/nope"])
@pytest.mark.parametrize("order", [("chat", "counter"), ("counter", "chat")])
def test_a_recurrent_model_has_no_part_in_openais_paths(order: tuple[str, str], path: str) -> None:
    """A missing response is missing, and a chat without a model reaches a language model."""
    documents: dict[str, Any] = {"chat": {}, "counter": {"handler": COUNTER}}

    def missing(message: Submit) -> list[Event]:
        return [refused(message.request_id, 404)]

    fronts = {name: FakeFront(name, document, missing) for name, document in documents.items()}
    with client_of(*(fronts[name] for name in order)) as client:
        assert client.get(f"/v1/{path}").json()["error"]["code"] != "unknown_url"
        client.post("/v1/chat/completions", json={"messages": CHAT["messages"]})
    assert fronts["chat"].dispatcher.submitted
    assert not fronts["counter"].dispatcher.submitted
