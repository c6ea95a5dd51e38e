"""Requests without a principal at the front without TorchServe: their bodies are not read."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from tests.support.fake_front import FakeFront
from ts_stateful.asgi.body import BodyReader
from ts_stateful.asgi.listener import make_listener
from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.routes import make_app
from ts_stateful.asgi.settings import FrontSettings
from ts_stateful.protocol.errors import ServerBusy

_PATIENCE_S = 20.0
_MAX_BYTES = 25_000_000
_AUTH = {"handler": {"auth": {"mode": "header", "header": "X-Principal"}, "audit": "json"}}
_HELLO = b'{"type": "hello"}'


class FullFront(FakeFront):
    """A front that has no room for requests with a principal."""

    def check_room(self, count: int = 1) -> None:
        """See `ModelFront`."""
        raise ServerBusy("full")


@asynccontextmanager
async def listening(*fronts: FakeFront) -> AsyncIterator[Any]:
    """Serve these models; yield the address."""
    app = make_app(
        Models(cast("list[ModelFront]", list(fronts))), BodyReader(_MAX_BYTES, _PATIENCE_S)
    )
    fields: dict[str, Any] = dict.fromkeys(
        ("http_fd", "management_fd", "metrics_fd", "admin_fd", "grpc_port"), 0
    )
    server = make_listener(app, FrontSettings(models=(), host="127.0.0.1", **fields))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            await serving


async def talk(
    address: Any, path: str, headers: Sequence[str], *parts: bytes, until_closed: bool = False
) -> bytes:
    """Send a request; return its answer, or all that comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection(*address)
    head = [f"POST {path} HTTP/1.1", "Host: x", *headers, "", ""]
    try:
        writer.write("\r\n".join(head).encode())
        for part in parts:
            writer.write(part)
            await writer.drain()
        if until_closed:
            return await asyncio.wait_for(reader.read(), _PATIENCE_S)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE_S)
        length = answer.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
        return answer + await reader.readexactly(int(length))
    finally:
        writer.close()


def answer_to(path: str, headers: Sequence[str], *parts: bytes, front: FakeFront) -> bytes:
    """Return the answer of a server with one model."""

    async def run() -> bytes:
        async with listening(front) as address:
            return await talk(address, path, headers, *parts)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("headers", "parts"),
    [
        (["Content-Length: 25000000"], []),
        (["Content-Length: 25000000", "Expect: 100-continue"], []),
        (["Content-Length: 25000001"], []),
        (["Content-Length: 513"], []),
        (["Content-Length: 513", "Content-Type: multipart/form-data; boundary=x"], []),
        (["Transfer-Encoding: chunked"], [b"201\r\n", b"x" * 513]),
        (["Content-Length: 8000000"], [b"x" * 8_000_000]),
    ],
    ids=["headers", "expect", "too large", "a byte too long", "form", "chunked", "all of it"],
)
@pytest.mark.parametrize("path", ["/predictions/chat", "/v1/chat/completions"])
def test_a_stranger_is_refused_before_its_body_is_read(
    path: str, headers: list[str], parts: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """In the form of the path, and with a line of audit. A client that sends all of it gets its answer, too."""
    front = FullFront(document=_AUTH)
    answer = answer_to(path, headers, *parts, front=front)
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0].startswith(b"http/1.1 401")
    assert {b"connection: close", b"www-authenticate: bearer"} <= set(lines)
    error = json.loads(body)["error"]
    assert error["code"] == "unauthenticated"
    assert ("param" in error) is path.startswith("/v1")
    (line,) = [each for each in caplog.messages if '"verb"' in each]
    assert (json.loads(line)["verb"], json.loads(line)["status"]) == ("refuse", 401)
    assert not front.dispatcher.submitted


@pytest.mark.parametrize(
    "headers", [[f"Content-Length: {len(_HELLO)}"], ["Transfer-Encoding: chunked"]]
)
def test_a_stranger_may_say_hello(headers: list[str]) -> None:
    """Its body is read up to 512 bytes."""
    body = _HELLO if "Length" in headers[0] else b"%x\r\n%b\r\n0\r\n\r\n" % (len(_HELLO), _HELLO)
    front = FakeFront(document=_AUTH)
    answer = answer_to("/predictions/chat", [*headers, "Connection: close"], body, front=front)
    assert answer.startswith(b"HTTP/1.1 200")


def test_strangers_that_hold_back_their_bodies_keep_no_principal_out() -> None:
    """Large requests of principals are read all the same, and the server closes the strangers' connections."""
    prompt = json.dumps({"prompt": "x" * 100_000}).encode()
    own = ["X-Principal: alice", f"Content-Length: {len(prompt)}", "Connection: close"]

    async def run() -> bytes:
        async with listening(FakeFront(document=_AUTH)) as address:
            sent, length = b"x" * 1_000_000, [f"Content-Length: {_MAX_BYTES}"]
            talks = [
                talk(address, "/predictions/chat", length, sent, until_closed=True)
                for _ in range(10)
            ]
            strangers = [asyncio.ensure_future(each) for each in talks]
            answer = await talk(address, "/predictions/chat", own, prompt)
            assert all(b" 401 " in each for each in await asyncio.gather(*strangers))
            return answer

    assert asyncio.run(run()).startswith(b"HTTP/1.1 200")


def test_where_the_body_names_the_model_one_that_knows_the_caller_is_enough() -> None:
    """Otherwise a principal of the second model would be refused for the first one."""
    other = {"handler": {"auth": {"mode": "header", "header": "X-Other"}}}
    body = json.dumps({"model": "b", "messages": [{"role": "user", "content": "x" * 600}]}).encode()

    async def run(header: str) -> bytes:
        async with listening(FakeFront("a", _AUTH), FakeFront("b", other)) as address:
            headers = [header, f"Content-Length: {len(body)}", "Connection: close"]
            return await talk(address, "/v1/chat/completions", headers, body)

    assert asyncio.run(run("X-Other: alice")).startswith(b"HTTP/1.1 200")
    assert asyncio.run(run("X-None: alice")).startswith(b"HTTP/1.1 401")
