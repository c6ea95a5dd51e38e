"""Connections to the front, whose clients send what never ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.certificates import NO_OPENSSL, has_openssl, self_signed
from ts_stateful.asgi.listener import make_listener
from ts_stateful.asgi.settings import FrontSettings, Tls

PATIENCE_S = 20.0
PORTS: dict[str, Any] = dict.fromkeys(
    ("http_fd", "management_fd", "metrics_fd", "admin_fd", "grpc_port"), 0
)
SETTINGS = FrontSettings(models=(), host="127.0.0.1", **PORTS)
POST = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
FILLER = b"x-filler: " + b"y" * 1000 + b"\r\n"


async def length_of_body(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers with the number of bytes that it got."""
    count, more = 0, True
    while more:
        message = await receive()
        count += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % count})


async def stream(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers in three parts, and names no length."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for part in (b"one ", b"two ", b""):
        await send({"type": "http.response.body", "body": part, "more_body": bool(part)})


async def answer_to(*parts: bytes, app: ASGIApp = length_of_body) -> bytes:
    """Send parts of a request to a server; return what comes until it closes the connection."""
    server = make_listener(app, SETTINGS)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            return await asyncio.wait_for(reader.read(), PATIENCE_S)
        except ConnectionError:
            return b""
        finally:
            writer.close()
            server.should_exit = True
            await serving


@pytest.mark.parametrize(
    "beginning",
    [POST[:-2], POST + b"0\r\n", POST + b"1\r\na\r\n0\r\n"],
    ids=["headers", "trailers", "trailers after a body"],
)
def test_what_is_no_body_is_bounded(beginning: bytes) -> None:
    """Wherever HTTP lets a client send more of it; the server would keep all."""
    assert asyncio.run(answer_to(beginning, *[FILLER] * 200)) == b""


@pytest.mark.parametrize(("num_fillers", "status"), [(60, b"200"), (70, b"400")])
def test_headers_that_come_at_once_are_bounded(num_fillers: int, status: bytes) -> None:
    """A body that comes with them is none of it."""
    length = b"Connection: close\r\nContent-Length: 70000\r\n"
    head = b"POST / HTTP/1.1\r\n" + length + FILLER * num_fillers + b"\r\n"
    answer = asyncio.run(answer_to(head + b"y" * 70_000))
    assert answer.startswith(b"HTTP/1.1 " + status) or (status == b"400" and answer == b"")


def test_proxies_close_idle_connections_first() -> None:
    """They keep them for up to 10 minutes. What one sent at the moment of the server's own close would be lost: a 502."""
    assert make_listener(stream, SETTINGS).config.timeout_keep_alive > 600


def test_a_long_body_in_small_parts_is_none_of_it() -> None:
    """Marks between the parts may be more than headers may be."""
    part = b"1;a=b\r\na\r\n" * 1000
    end = b"0\r\nx-checksum: 1\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n"
    answer = asyncio.run(answer_to(POST, *[part] * 20, end))
    assert b"\r\n20000\r\n" in answer
    assert answer.count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize(
    ("request_head", "body"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", b"one two "),
        (b"HEAD / HTTP/1.0\r\n\r\n", b""),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", b"4\r\none \r\n4\r\ntwo \r\n0\r\n\r\n"),
    ],
)
def test_a_stream_has_chunks_where_the_client_reads_them(request_head: bytes, body: bytes) -> None:
    """One of HTTP/1.0, such as nginx by default, reads to the end of the connection."""
    head, _, rest = asyncio.run(answer_to(request_head, app=stream)).partition(b"\r\n\r\n")
    assert rest == body
    assert b"connection: close" in head
    assert (b"chunked" in head) == (b"HTTP/1.1" in request_head)


@pytest.mark.parametrize(
    "connection",
    [b"Connection: Upgrade, HTTP2-Settings", b"Connection: Upgrade\r\nConnection: HTTP2-Settings"],
)
@pytest.mark.parametrize("num_bytes", [1, 50, 10_000])
def test_a_proposal_of_http2_is_ignored(connection: bytes, num_bytes: int) -> None:
    """Java's client makes one with each request, and sends the body at once."""
    head = b"POST / HTTP/1.1\r\n" + connection + b"\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    sent = (head + b"Content-Length: 3\r\n\r\nabc") * 2
    sent += b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"
    parts = [sent[at : at + num_bytes] for at in range(0, len(sent), num_bytes)]
    answers = asyncio.run(answer_to(*parts)).split(b"HTTP/1.1 200 OK")
    assert [answer.split()[-2] for answer in answers[1:]] == [b"3", b"3", b"0"]


@pytest.mark.parametrize(
    "request_line", [b"POST / HTTP/1.0", b"POST / HTTP/1.1\r\nConnection: close"]
)
def test_an_answer_before_the_end_of_a_body_arrives(request_line: bytes) -> None:
    """A close while the client still sends would reset the connection: proxies answer 502 then."""
    parts = [b"x" * 100_000] * 100
    head = b"%b\r\nContent-Length: 10000000\r\n\r\n" % request_line
    assert b"one" in asyncio.run(answer_to(head, *parts, app=stream))


@pytest.mark.skipif(not has_openssl(), reason=NO_OPENSSL)
@pytest.mark.parametrize("num_bytes", [1, 50_000])
def test_an_idle_client_does_not_delay_a_stop(tmp_path: Path, num_bytes: int) -> None:
    """Of TLS, which ends a connection on both sides: this client does nothing more. One that is slow gets all of its answer."""
    pem = str(self_signed(tmp_path / "a.pem"))
    trusted = ssl.create_default_context(cafile=pem)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        length = [(b"content-length", b"%d" % num_bytes)]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": b"x" * num_bytes})

    def ask(address: tuple[str, int]) -> ssl.SSLSocket:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(PATIENCE_S)
        plain.connect(address)
        client = trusted.wrap_socket(plain, server_hostname="127.0.0.1")
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        return client

    def rest(client: ssl.SSLSocket) -> int:
        return sum(map(len, iter(lambda: client.recv(1 << 16), b"")))

    async def run() -> None:
        server = make_listener(answer, SETTINGS, tls=Tls(certificate=pem, key=f"{pem}.key"))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            with await asyncio.to_thread(ask, listener.getsockname()) as client:
                server.should_exit = True
                await asyncio.wait([serving], timeout=4.0 if num_bytes == 1 else 1.0)
                assert serving.done() == (num_bytes == 1)
                assert await asyncio.to_thread(rest, client) == num_bytes
            await serving

    asyncio.run(run())
