"""gRPC's own services: health, for probes and balancers, and reflection, for tools such as grpcurl."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ts_stateful.asgi.models import Models
from ts_stateful.pb import inference_pb2

__all__ = ["add_grpc_services"]

_SERVICE: Final = inference_pb2.DESCRIPTOR.services_by_name["InferenceAPIsService"].full_name
_Answer = health_pb2.HealthCheckResponse
_WATCH_S = 1.0


def add_grpc_services(server: Any, models: Models) -> None:
    """Let a server answer `grpc.health.v1.Health`, and describe TorchServe's service."""
    health_pb2_grpc.add_HealthServicer_to_server(_Health(models), server)
    health = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
    reflection.enable_server_reflection([_SERVICE, health, reflection.SERVICE_NAME], server)


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Readiness, as `/readyz` reports it: of the server for no name or TorchServe's service, else of the model of that name."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def Check(self, request: Any, context: Any) -> Any:
        """Return the status, or NOT_FOUND for a name that nothing has."""
        status = self._status(request.service)
        if status == _Answer.SERVICE_UNKNOWN:
            known = ", ".join([_SERVICE, *(model.name for model in self._models)])
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"{request.service[:64]!r} is none of {known}"
            )
        return _Answer(status=status)

    async def Watch(self, request: Any, _context: Any) -> AsyncIterator[Any]:
        """Yield the status, and each change of it, until the client disconnects."""
        last = None
        while True:
            status = self._status(request.service)
            if status != last:
                yield _Answer(status=status)
            last = status
            await asyncio.sleep(_WATCH_S)

    def _status(self, name: str) -> int:
        ready = [one.is_ready for one in self._models if name in ("", _SERVICE, one.name)]
        if not ready:
            return int(_Answer.SERVICE_UNKNOWN)
        is_ready = not self._models.is_draining and all(ready)
        return int(_Answer.SERVING if is_ready else _Answer.NOT_SERVING)
