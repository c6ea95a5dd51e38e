"""The HTTP endpoints of operators, on a socket or a port of their own."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ts_stateful.asgi.http import refuse_other_paths
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.operator import Operator
from ts_stateful.protocol.errors import StatefulError, Unauthenticated

__all__ = ["TokenGuard", "make_admin_app"]

_Verb = Callable[[Operator, Request], Awaitable[dict[str, Any]]]


def make_admin_app(models: Models) -> Starlette:
    """Return the application. Everything that reaches it may administer the server."""
    operator = Operator(models)

    def route(method: str, path: str, verb: _Verb) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                return JSONResponse(await verb(operator, request))
            except StatefulError as error:
                return JSONResponse(error.to_body(), error.status)

        return Route(path, endpoint, methods=[method])

    return Starlette(
        routes=[
            route("GET", "/status", _status),
            route("GET", "/sessions", _sessions),
            route("GET", "/sessions/{session}", _session),
            route("POST", "/sessions/{session}/evict", _evict),
            route("POST", "/sessions/{session}/expire", _expire),
            route("POST", "/sessions/{session}/close", _close),
            route("POST", "/tenants/{tenant:path}/close", _end_tenant),
            route("POST", "/drain", _drain),
            route("POST", "/undrain", _undrain),
            route("POST", "/engines/{engine:int}/restart", _restart),
            route("POST", "/log-level", _log_level),
        ],
        exception_handlers=refuse_other_paths("what docs/admin.md lists"),
    )


class TokenGuard:
    """An application that answers 401 to requests without `Authorization: Bearer <token>`."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            await self._app(scope, receive, send)
            return
        error = Unauthenticated("this port needs `Authorization: Bearer` and the server's token")
        refusal = JSONResponse(error.to_body(), error.status, {"WWW-Authenticate": "Bearer"})
        await refusal(scope, receive, send)


async def _status(operator: Operator, request: Request) -> dict[str, Any]:
    return operator.status()


async def _sessions(operator: Operator, request: Request) -> dict[str, Any]:
    return await operator.sessions(request.query_params.get("tenant"))


async def _session(operator: Operator, request: Request) -> dict[str, Any]:
    return await operator.session(request.path_params["session"])


async def _evict(operator: Operator, request: Request) -> dict[str, Any]:
    return await operator.evict(request.path_params["session"])


async def _expire(operator: Operator, request: Request) -> dict[str, Any]:
    return await operator.expire(request.path_params["session"])


async def _close(operator: Operator, request: Request) -> dict[str, Any]:
    return await operator.close(request.path_params["session"], request.query_params.get("model"))


async def _end_tenant(operator: Operator, request: Request) -> dict[str, Any]:
    return await operator.end_tenant(request.path_params["tenant"])


async def _drain(operator: Operator, request: Request) -> dict[str, Any]:
    return operator.drain()


async def _undrain(operator: Operator, request: Request) -> dict[str, Any]:
    return operator.undrain()


async def _restart(operator: Operator, request: Request) -> dict[str, Any]:
    return operator.restart(request.path_params["engine"], request.query_params.get("model"))


async def _log_level(operator: Operator, request: Request) -> dict[str, Any]:
    return await operator.set_log_level(request.query_params.get("level", ""))
