"""The ports of a front."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from tests.support.ports import free_ports
from ts_stateful.asgi import process
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.process import _make_rpc, _open_port, raise_file_limit
from ts_stateful.asgi.settings import FrontSettings

_PATIENCE_S = 20.0
_PING = b"\0\0\x08\6%c\0\0\0\0pingpong"  # a frame of HTTP/2; the flag 1 makes it an answer


@asynccontextmanager
async def connected(
    host: str = "127.0.0.1",
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to gRPC's port of a server without models."""
    fds: Any = dict.fromkeys(("http_fd", "management_fd", "metrics_fd", "admin_fd"), -1)
    settings = FrontSettings(models=(), host=host, grpc_port=free_ports().grpc, **fds)
    rpc = _make_rpc(Models(cast("Any", [])), settings)
    _open_port(rpc, settings)
    await rpc.start()
    reader, writer = await asyncio.open_connection(host, settings.grpc_port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await rpc.stop(None)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_grpc_listens_where_http_does(host: str) -> None:
    """Also on an address of IPv6, which has brackets before a port."""

    async def connect() -> None:
        async with connected(host):
            pass

    asyncio.run(connect())


def test_a_grpc_client_may_ping_while_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least each second. gRPC ends a connection at the third ping that comes too early: here none does."""
    assert process._PING_MS <= 1000
    monkeypatch.setattr(process, "_PING_MS", 0)

    async def ping() -> None:
        async with connected() as (reader, writer):
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            for _ in range(8):
                writer.write(_PING % 0)
                await asyncio.wait_for(reader.readuntil(_PING % 1), _PATIENCE_S)

    asyncio.run(ping())


def test_a_front_takes_all_descriptors_that_it_may_have() -> None:
    """Each connection needs one, and most systems give 1,024 to a program that does not ask for more."""
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= soft
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
