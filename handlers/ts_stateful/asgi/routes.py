"""The HTTP and WebSocket endpoints of a server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from ts_stateful.asgi.body import BodyReader
from ts_stateful.asgi.health import Health
from ts_stateful.asgi.http import OpenAiRoot, Predictions, refuse_other_paths
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.open_inference.http import infer_routes
from ts_stateful.asgi.response_socket import ResponseConnection
from ts_stateful.asgi.websocket import SessionConnection
from ts_stateful.frontend.dialects.served_model import UnknownPath
from ts_stateful.frontend.parsing.correlation import Correlation
from ts_stateful.frontend.pending_response import IGNORED
from ts_stateful.protocol.defects import defect

__all__ = ["make_app", "make_management_app", "make_metrics_app"]

_PROBES = "/livez, /readyz, /ping and /models"


def make_app(models: Models, bodies: BodyReader, *, names_requests: bool = True) -> Starlette:
    """Return the application of the public port. Without `names_requests`, another layer adds `x-request-id`."""
    health, default = Health(models), models.of_openai[0]
    sessions = SessionConnection.endpoint(models)
    responses = ResponseConnection.endpoint(models, default.name)
    predictions, openai = Predictions(models, bodies), OpenAiRoot(models, bodies)
    base = "" if default.config.state else "/v1 (the base URL of OpenAI's clients), "
    return Starlette(
        middleware=[Middleware(_Correlated, names_requests=names_requests), *_cross_origin(models)],
        exception_handlers=refuse_other_paths(
            f"/predictions/{next(iter(models)).name}, {base}/v2, /invocations, {_PROBES}"
        ),
        routes=[
            *_health(health),
            Route("/predictions/{model}", predictions),
            Route("/predictions/{model}/{rest:path}", predictions),
            Route("/invocations", predictions, methods=["POST"]),
            Route("/v1", openai),
            Route("/v1/{path:path}", openai),
            Route("/openai/v1/{path:path}", openai),  # of Azure's clients, new ones
            Route("/openai/{path:path}", openai),
            *infer_routes(models, bodies),
            WebSocketRoute("/v1/responses", responses),
            WebSocketRoute("/predictions/{model}/v1/responses", responses),
            WebSocketRoute("/v1/sessions", sessions),
            WebSocketRoute("/v1/sessions/{model}", sessions),
            WebSocketRoute("/invocations-bidirectional-stream", sessions),
            WebSocketRoute("/{path:path}", _refuse_socket),
        ],
    )


def make_management_app(models: Models) -> Starlette:
    """Return the application of the management port, which clients do not reach."""
    return Starlette(
        middleware=[Middleware(_Correlated)],
        routes=_health(Health(models)),
        exception_handlers=refuse_other_paths(_PROBES),
    )


def make_metrics_app(registry: CollectorRegistry) -> Starlette:
    """Return the application of the metrics' port."""

    async def metrics(_request: Request) -> Response:
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return Starlette(
        routes=[Route("/metrics", metrics)], exception_handlers=refuse_other_paths("/metrics")
    )


class _Correlated:
    """A layer that gives each answer the names of its request, which it puts into the scope as `correlation`.

    A request whose application raises is `internal`: the server below would log the exception's text.
    """

    def __init__(self, app: ASGIApp, *, names_requests: bool = True) -> None:
        self._app = app
        self._names_requests = names_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = scope["correlation"] = Correlation.of(Headers(raw=scope.get("headers", [])).items())
        pairs = known.pairs() if self._names_requests else known.pairs()[1:]
        pairs.append((b"cache-control", b"no-store"))  # a GET can open a session
        has_begun = False

        async def send_named(message: Message) -> None:
            nonlocal has_begun
            if message["type"].endswith("http.response.start"):  # also that of a WebSocket
                has_begun = True
                message["headers"] = [*message["headers"], *pairs]
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception as error:
            if scope["type"] != "http":
                raise
            failure = defect(error, f"the answer to request {known.request_id}")
            if not has_begun:
                answer = JSONResponse(failure.to_body(), failure.status)
                await answer(scope, receive, send_named)


async def _refuse_socket(socket: WebSocket) -> None:
    error = UnknownPath(
        f"no WebSocket is at {socket.url.path[:64]}; this port has /v1/sessions and /v1/responses"
    )
    await socket.send_denial_response(JSONResponse(error.to_body(), error.status))


def _cross_origin(models: Models) -> list[Middleware]:
    """Let scripts of the pages that a model allows read answers (https://fetch.spec.whatwg.org/#http-cors-protocol)."""
    origins = {origin for model in models for origin in model.config.engine.allowed_origins}
    if not origins:
        return []
    session_headers = {name for model in models for name in (model.names.id, model.names.end)}
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=sorted(origins),
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["*"],
            expose_headers=[*sorted(session_headers), IGNORED, "x-request-id", "Retry-After"],
        )
    ]


def _health(health: Health) -> list[BaseRoute]:
    return [
        Route("/livez", health.live),
        Route("/readyz", health.ready),
        Route("/readyz/{model}", health.ready),
        Route("/ping", health.ping),
        Route("/models", health.models),
        Route("/models/{model}", health.model),
    ]
