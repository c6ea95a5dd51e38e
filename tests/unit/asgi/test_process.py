"""The ports of a front."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest

from tests.support.ports import free_ports
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.process import _make_rpc, _open_port
from ts_stateful.asgi.settings import FrontSettings


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_grpc_listens_where_http_does(host: str) -> None:
    """Also on an address of IPv6, which has brackets before a port."""
    fds: Any = dict.fromkeys(("http_fd", "management_fd", "metrics_fd", "admin_fd"), -1)
    settings = FrontSettings(models=(), host=host, grpc_port=free_ports().grpc, **fds)

    async def serve() -> None:
        rpc = _make_rpc(Models(cast("Any", [])), settings)
        _open_port(rpc, settings)
        await rpc.start()
        socket.create_connection((host, settings.grpc_port), timeout=10).close()
        await rpc.stop(None)

    asyncio.run(serve())
