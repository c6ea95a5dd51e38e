"""The ports of a front."""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Any, cast

import pytest

from tests.support.ports import free_ports
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.process import _make_rpc, _open_port, raise_file_limit
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


def test_a_front_takes_all_descriptors_that_it_may_have() -> None:
    """Each connection needs one, and most systems give 1,024 to a program that does not ask for more."""
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= soft
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
