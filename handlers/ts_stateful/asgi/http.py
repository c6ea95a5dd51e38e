"""Predictions over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncGenerator, Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec import structs
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ExceptionHandler, Receive, Scope, Send

from ts_stateful.asgi.body import BodyReader, BodyTooLong, Disconnected, leave_unread
from ts_stateful.asgi.exchange import exchange
from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.request_headers import http_headers
from ts_stateful.frontend.dialects.openai_responder import OpenAiResponder
from ts_stateful.frontend.dialects.served_model import UnknownPath, split_deployment
from ts_stateful.frontend.intake import MAX_HELLO_BYTES, Arrival
from ts_stateful.frontend.pending_response import Response
from ts_stateful.principals.authenticator import Call
from ts_stateful.protocol.answers import encode
from ts_stateful.protocol.errors import StatefulError

__all__ = ["OpenAiRoot", "Predictions", "WrongMethod", "joined_lists", "refuse_other_paths"]

_Pairs = list[tuple[bytes, bytes]]
_JSON = b"application/json"
_API = "v1/"
# The methods of a path after the model's own; those that read take a POST too, as TorchServe does not pass a method on.
_METHODS = {
    r"(?!v1(/|$))(?s:.*)": "GET, POST, PUT",  # `curl -T` sends a PUT
    r"v1/((chat/)?completions|responses|conversations|responses/[^/]+/cancel)": "POST",
    r"v1/models(/.+)?": "GET, HEAD",
    r"v1/(responses/[^/]+/input_items|conversations/[^/]+/items)": "GET, POST",
    r"v1/((responses|conversations)/[^/]+|conversations/[^/]+/items/[^/]+)": "GET, POST, DELETE",
}
_MODEL = re.compile(r"v1/models/(.+?)/*")
_BAD_REQUEST, _NOT_FOUND = 400, 404


class WrongMethod(StatefulError):
    """The path exists, but does not take the request's method."""

    code, status = "method_not_allowed", 405
    allowed = ""

    @classmethod
    def of(cls, path: str, method: str, allowed: str) -> WrongMethod:
        """Return the error of a path that takes the methods `allowed`."""
        error = cls(f"{path[:64]} does not take {method[:16]}; it takes {allowed}")
        error.allowed = allowed
        return error


class Place(NamedTuple):
    """The parts of a URL: a model, its version, and a path of another server's API, such as `v1/chat/completions`."""

    model: str | None
    version: str | None
    path: str

    @classmethod
    def of(cls, model: str | None, rest: str) -> Place:
        """Take the part of the URL after the model's name apart. The version can be left out."""
        if rest.startswith(_API):
            return cls(model, None, rest)
        version, _, path = rest.partition("/")
        return cls(model, version or None, path)


class Predictions:
    """An ASGI application: one request to a model, and its answer as it comes.

    A client that reads slowly for `write_s` seconds is disconnected.
    """

    _infers = False  # True if paths are those of the Open Inference Protocol

    def __init__(self, models: Models, bodies: BodyReader, write_s: float = 60.0) -> None:
        self.models = models
        self._bodies = bodies
        self._write_s = write_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to the model that its path names."""
        found = scope["path_params"]
        await self._answer(
            scope, receive, send, Place.of(found.get("model"), found.get("rest", ""))
        )

    async def _answer(self, scope: Scope, receive: Receive, send: Send, place: Place) -> None:
        pairs = Headers(scope=scope).items()
        call, name = Call(tuple(pairs)), place.model
        parts: dict[str, bytes] = {}
        refusal: StatefulError | None = None
        try:
            model = await self._default(place)
            _check_method(scope, place.path)
            refusal = self.models.refusal_of(call, name)
            most = MAX_HELLO_BYTES if refusal else None
            parts = await self._bodies.parts(scope, receive, model.limits.max_parts, most)
            model, refusal = await self._named(model, parts, place.path), None
            name = model.name
            model.check_room()
        except Disconnected:
            return
        except BodyTooLong:
            pass
        except StatefulError as error:
            self.models.count_refusal(error, name)
            await _refuse(send, error, self._refusal(error, place.path))
            return
        headers = http_headers(
            pairs, place.path, model.names, method=scope["method"], infers=self._infers
        )
        arrival = Arrival(parts, headers, call, scope["correlation"], refusal)
        if refusal is None:
            await self._serve(model, arrival, receive, send)
        else:
            async with leave_unread(receive, send) as (receive, send):
                await self._serve(model, arrival, receive, send)

    async def _default(self, place: Place) -> ModelFront:
        """Return the model of a path. Raises as `Models.find` does."""
        return await self.models.find(place.model, place.version)

    async def _named(self, model: ModelFront, parts: dict[str, bytes], path: str) -> ModelFront:
        """Return the model that is named where a model's own path is not."""
        return model

    def _exchange(self, model: ModelFront, arrival: Arrival) -> AsyncGenerator[Response, None]:
        return exchange(model, arrival)

    def _refusal(self, error: StatefulError, path: str) -> bytes:
        is_openai = f"{path}/".lstrip("/").startswith(_API)
        return OpenAiResponder().refusal(error) if is_openai else encode(error.to_body())

    async def _serve(
        self, model: ModelFront, arrival: Arrival, receive: Receive, send: Send
    ) -> None:
        writer = asyncio.ensure_future(self._write(self._exchange(model, arrival), send))
        watcher = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((writer, watcher), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writer, watcher):
                task.cancel()
            outcome, _ = await asyncio.gather(writer, watcher, return_exceptions=True)
        if isinstance(outcome, Exception):
            raise outcome

    async def _write(self, responses: AsyncGenerator[Response, None], send: Send) -> None:
        """Write an answer; a client that does not read it for too long counts as disconnected: the task is cancelled.

        Before Python 3.12 `wait_for` can swallow a cancellation, and the turn would go on without its client.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        async with contextlib.aclosing(responses):
            is_first = True
            async for response in responses:
                more = response.more is True
                message = {"type": "http.response.body", "body": response.body, "more_body": more}
                patience = loop.call_later(self._write_s, task.cancel)
                try:
                    if is_first:  # it waits until earlier answers on the connection are read
                        await send(_start(response))
                        is_first = False
                    await send(message)
                finally:
                    patience.cancel()


class OpenAiRoot(Predictions):
    """The same under `/v1`: the body's `model`, or Azure's deployment, names the model where there are several.

    A request without a body names what only one of them has: a response, or a conversation. The list of models has them all.
    """

    async def _default(self, place: Place) -> ModelFront:
        return await self.models.find(self.models.of_openai[0].name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to the path after `/`."""
        path = f"v1/{scope['path_params'].get('path', '')}"
        await self._answer(scope, receive, send, Place(None, None, path))

    async def _named(self, model: ModelFront, parts: dict[str, bytes], path: str) -> ModelFront:
        body, asked = parts.get("body"), _MODEL.fullmatch(path)
        name = asked[1] if asked else None
        if len(self.models) > 1 and body is not None:
            with contextlib.suppress(msgspec.DecodeError):
                name = split_deployment(path)[1] or msgspec.json.decode(body, type=_Named).model
        return await self.models.find_named(name) if len(self.models) > 1 and name else model

    def _exchange(self, model: ModelFront, arrival: Arrival) -> AsyncGenerator[Response, None]:
        models = self.models.of_openai
        if arrival.data.get("body") or len(models) == 1:
            return exchange(model, arrival)
        if arrival.headers.path.strip("/") == "v1/models":
            return joined_lists([exchange(each, arrival) for each in models])
        return _first_found(models, arrival)


async def joined_lists(
    answers: Iterable[AsyncGenerator[Response, None]],
) -> AsyncGenerator[Response, None]:
    """Yield one list of the entries of several; a model that refuses has none, and if all do, the first refusal is yielded."""
    firsts = []
    for responses in answers:
        async with contextlib.aclosing(responses):
            firsts.append(await anext(responses))
    listed = [response for response in firsts if response.status < _BAD_REQUEST]
    data = [entry for each in listed for entry in msgspec.json.decode(each.body)["data"]]
    body = encode({"object": "list", "data": data})
    yield structs.replace(listed[0], body=body) if listed else firsts[0]


async def _first_found(
    models: list[ModelFront], arrival: Arrival
) -> AsyncGenerator[Response, None]:
    """Yield the responses of the first model that has what is asked for, or the refusal of the last one."""
    for model in models:
        async with contextlib.aclosing(exchange(model, arrival)) as responses:
            first = await anext(responses)
            if first.status == _NOT_FOUND and model is not models[-1]:
                continue
            yield first
            async for response in responses:
                yield response
            return


class _Named(msgspec.Struct):
    model: str | None = None


async def _refuse(send: Send, error: StatefulError, body: bytes) -> None:
    """Answer with an error, whose document is `body`."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, WrongMethod):
        headers["Allow"] = error.allowed
    await send(_start(Response(body, status=error.status, headers=headers)))
    await send({"type": "http.response.body", "body": body, "more_body": False})


def refuse_other_paths(known: str) -> dict[Any, ExceptionHandler]:
    """Return the exception handlers of an application of the `known` paths, which may raise `StatefulError`."""

    async def refuse(request: Request, _error: Exception) -> JSONResponse:
        error = UnknownPath(f"nothing is at {request.url.path[:64]}; this port has {known}")
        return JSONResponse(error.to_body(), error.status)

    async def refuse_method(request: Request, refusal: Exception) -> JSONResponse:
        assert isinstance(refusal, HTTPException)
        assert refusal.headers is not None
        error = WrongMethod.of(request.url.path, request.method, refusal.headers["Allow"])
        return JSONResponse(error.to_body(), error.status, headers=refusal.headers)

    async def answer(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, StatefulError)
        return JSONResponse(error.to_body(), error.status)

    return {_NOT_FOUND: refuse, WrongMethod.status: refuse_method, StatefulError: answer}


def _check_method(scope: Scope, path: str) -> None:
    """Check that a path of the model takes the request's method. One that the model does not have takes all."""
    path = split_deployment(path.strip("/"))[0]
    found = (methods for pattern, methods in _METHODS.items() if re.fullmatch(pattern, path))
    if (allowed := next(found, None)) and scope["method"] not in allowed.split(", "):
        raise WrongMethod.of(scope["path"], scope["method"], allowed)


async def _disconnected(receive: Receive) -> None:
    """Return when the client closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _start(response: Response) -> dict[str, object]:
    headers: _Pairs = [(b"content-type", response.content_type.encode() or _JSON)]
    if response.more is None:
        headers.append((b"content-length", b"%d" % len(response.body)))
    headers += [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in response.headers.items()
    ]
    return {"type": "http.response.start", "status": response.status, "headers": headers}
