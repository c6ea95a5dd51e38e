"""gRPC's health service at the front, over a connection."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from ts_stateful.asgi.rpc import health
from ts_stateful.asgi.rpc.health import add_grpc_services

PATIENCE_S = 20.0
UP, DOWN = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


class FakeModels(list[Any]):
    """Two models, of which one is being loaded."""

    is_draining = False

    def __init__(self) -> None:
        super().__init__(
            [SimpleNamespace(name="a", is_ready=True), SimpleNamespace(name="b", is_ready=False)]
        )


def test_a_model_and_the_server_are_as_ready_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher gets each change: at first, when all models are loaded, and when the server drains."""
    monkeypatch.setattr(health, "_WATCH_S", 0.001)
    models: Any = FakeModels()

    async def check() -> None:
        server = grpc.aio.server()
        add_grpc_services(server, models)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = HealthStub(channel)

            async def statuses() -> list[int]:
                asked = [HealthCheckRequest(service=name) for name in ("a", "b", "")]
                return [(await stub.Check(one, timeout=PATIENCE_S)).status for one in asked]

            watch = stub.Watch(HealthCheckRequest(), timeout=PATIENCE_S)
            assert (await watch.read()).status == DOWN
            assert await statuses() == [UP, DOWN, DOWN]
            models[1].is_ready = True
            assert (await watch.read()).status == UP
            assert await statuses() == [UP, UP, UP]
            models.is_draining = True
            assert (await watch.read()).status == DOWN
            assert await statuses() == [DOWN, DOWN, DOWN]
        await server.stop(None)

    asyncio.run(check())
