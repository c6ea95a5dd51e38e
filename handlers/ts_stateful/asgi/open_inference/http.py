"""The Open Inference Protocol over HTTP: requests, health and metadata."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from ts_stateful.asgi.body import BodyReader
from ts_stateful.asgi.http import Place, Predictions
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.open_inference.metadata import SERVER, model_metadata
from ts_stateful.frontend.dialects.dialect import JSON
from ts_stateful.frontend.open_inference.responder import infer_error
from ts_stateful.protocol.answers import encode
from ts_stateful.protocol.errors import StatefulError

__all__ = ["infer_routes"]


def infer_routes(models: Models, bodies: BodyReader) -> list[BaseRoute]:
    """Return the routes below `/v2`."""
    about, infer = _About(models), _Infer(models, bodies)
    routes: list[BaseRoute] = [
        Route("/v2", about.server),
        Route("/v2/health/live", about.live),
        Route("/v2/health/ready", about.ready),
    ]
    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes += [
            Route(f"{path}/infer", infer, methods=["POST"]),
            Route(f"{path}/ready", about.model_ready),
            Route(path, about.model),
        ]
    return routes


class _Infer(Predictions):
    """Requests to one model, whose errors are strings."""

    _infers = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to the model that its path names."""
        found = scope["path_params"]
        await self._answer(scope, receive, send, Place(found["model"], found.get("version"), ""))

    def _refusal(self, error: StatefulError, path: str) -> bytes:
        return infer_error(error.message)


class _About:
    """The endpoints of health and metadata."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def server(self, _request: Request) -> Response:
        """Return the server's name, version and extensions."""
        return Response(encode(SERVER), media_type=JSON)

    async def live(self, _request: Request) -> Response:
        """Return 200: the process answers."""
        return JSONResponse({"live": True})

    async def ready(self, _request: Request) -> Response:
        """Return 200 if every model answers."""
        return _readiness(self._models.is_ready)

    async def model_ready(self, request: Request) -> Response:
        """Return 200 if the model that the path names answers."""
        try:
            model = self._models.get(**request.path_params)
        except StatefulError as error:
            return _failed(error)
        return _readiness(model.is_ready and not self._models.is_draining)

    async def model(self, request: Request) -> Response:
        """Return the metadata of the model that the path names."""
        try:
            metadata = model_metadata(self._models.get(**request.path_params))
        except StatefulError as error:
            return _failed(error)
        return Response(encode(metadata), media_type=JSON)


def _readiness(is_ready: bool) -> Response:
    return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)


def _failed(error: StatefulError) -> Response:
    return Response(infer_error(error.message), error.status, media_type=JSON)
