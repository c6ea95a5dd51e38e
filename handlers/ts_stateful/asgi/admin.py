"""The HTTP endpoints of operators, on a socket or a port of their own."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ts_stateful.asgi.http import refuse_other_paths
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.operator import Operator
from ts_stateful.protocol.errors import StatefulError, Unauthenticated

__all__ = ["TokenGuard", "make_admin_app"]

_SESSION = "/sessions/{session}"
_Document = dict[str, Any]
_Verb = Callable[[Mapping[str, Any], QueryParams], "_Document | Awaitable[_Document]"]


def make_admin_app(models: Models) -> Starlette:
    """Return the application. Everything that reaches it may administer the server."""
    operator = Operator(models)
    return Starlette(
        routes=[
            _route("GET", "/status", lambda path, query: operator.status()),
            _route("GET", "/sessions", lambda path, query: operator.sessions(query.get("tenant"))),
            _route("GET", _SESSION, lambda path, query: operator.session(path["session"])),
            _route(
                "POST", f"{_SESSION}/evict", lambda path, query: operator.evict(path["session"])
            ),
            _route(
                "POST", f"{_SESSION}/expire", lambda path, query: operator.expire(path["session"])
            ),
            _route(
                "POST",
                f"{_SESSION}/close",
                lambda path, query: operator.close(path["session"], query.get("model")),
            ),
            _route(
                "POST",
                "/tenants/{tenant:path}/close",
                lambda path, query: operator.end_tenant(path["tenant"]),
            ),
            _route("POST", "/drain", lambda path, query: operator.drain()),
            _route("POST", "/undrain", lambda path, query: operator.undrain()),
            _route(
                "POST",
                "/engines/{engine:int}/restart",
                lambda path, query: operator.restart(path["engine"], query.get("model")),
            ),
            _route(
                "POST",
                "/log-level",
                lambda path, query: operator.set_log_level(query.get("level", "")),
            ),
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


def _route(method: str, path: str, verb: _Verb) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            found = verb(request.path_params, request.query_params)
            return JSONResponse(found if isinstance(found, dict) else await found)
        except StatefulError as error:
            return JSONResponse(error.to_body(), error.status)

    return Route(path, endpoint, methods=[method])
