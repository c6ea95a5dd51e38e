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
from ts_stateful.protocol.errors import Unauthenticated

__all__ = ["TokenGuard", "make_admin_app"]

_SESSION = "/sessions/{session_id}"
_Verb = Callable[..., dict[str, Any] | Awaitable[dict[str, Any]]]


def make_admin_app(models: Models) -> Starlette:
    """Return the application. Everything that reaches it may administer the server."""
    operator = Operator(models)
    return Starlette(
        routes=[
            _route("GET", "/status", operator.status),
            _route("GET", "/sessions", operator.sessions, "tenant"),
            _route("GET", _SESSION, operator.session),
            _route("POST", f"{_SESSION}/evict", operator.evict),
            _route("POST", f"{_SESSION}/expire", operator.expire),
            _route("POST", f"{_SESSION}/close", operator.close, "model"),
            _route("POST", "/tenants/{tenant:path}/close", operator.end_tenant),
            _route("POST", "/drain", operator.drain),
            _route("POST", "/undrain", operator.undrain),
            _route("POST", "/engines/{index:int}/restart", operator.restart, "model"),
            _route("POST", "/log-level", operator.set_log_level, "level"),
        ],
        exception_handlers=refuse_other_paths("what docs/admin.md lists"),
    )


class TokenGuard:
    """An application that answers 401 to requests without `Authorization: Bearer <token>`."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        is_bearer = scheme.lower() == b"bearer"  # in any case: RFC 7235
        if is_bearer and hmac.compare_digest(token.lstrip(b" "), self._expected):
            await self._app(scope, receive, send)
            return
        error = Unauthenticated("this port needs `Authorization: Bearer` and the server's token")
        refusal = JSONResponse(error.to_body(), error.status, {"WWW-Authenticate": "Bearer"})
        await refusal(scope, receive, send)


def _route(method: str, path: str, verb: _Verb, *parameters: str) -> Route:
    """Return the route of a verb, whose arguments are in the path and, of these `parameters`, in the query."""

    async def endpoint(request: Request) -> Response:
        query = request.query_params
        given = {name: query[name] for name in parameters if name in query}
        found = verb(**request.path_params, **given)
        return JSONResponse(found if isinstance(found, dict) else await found)

    return Route(path, endpoint, methods=[method])
