"""The runtime API over HTTP, between clients and containers.

Owns the two operations, `GET /ping`, and the health of instances. Which instance takes a request is `routing`'s to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from ts_stateful.protocol.sagemaker import (
    CLOSED_SESSION_ID,
    MAX_BODY_BYTES,
    MODEL_TIMEOUT_S,
    NEW_SESSION_ID,
    SESSION_ID,
    STREAM_TIMEOUT_S,
    parse_opened,
)
from ts_stateful.sagemaker_local.calls import CUSTOM_ATTRIBUTES, VARIANT, Call, read_call
from ts_stateful.sagemaker_local.containers import (
    Answer,
    Containers,
    TimedOut,
    Unreachable,
    WentAway,
)
from ts_stateful.sagemaker_local.errors import (
    TIMED_OUT,
    WENT_AWAY,
    ServiceError,
    body_too_large,
    model_error,
    model_failed,
)
from ts_stateful.sagemaker_local.eventstream import MEDIA_TYPE, payload_part, stream_error
from ts_stateful.sagemaker_local.routing import Instance, Router

__all__ = ["Limits", "make_app"]

_MAX_MISSED_PINGS = 3  # in a row; a session that is sent elsewhere does not come back
_CONTENT_TYPE = "X-Amzn-SageMaker-Content-Type"  # of what a stream carries


@dataclass(frozen=True)
class Limits:
    """`model_s` for a whole answer and for the beginning of a stream, `stream_s` for all of it; containers are asked for their
    health every `ping_s`.
    """

    model_s: float = MODEL_TIMEOUT_S
    stream_s: float = STREAM_TIMEOUT_S
    ping_s: float = 5.0


_SERVICE = Limits()


def make_app(
    name: str,
    router: Router,
    limits: Limits = _SERVICE,
    say: Callable[[str], None] = lambda _: None,
) -> web.Application:
    """The endpoint of that name as an application; `say` gets a line when an instance leaves service or returns."""
    endpoint = _Endpoint(name, router, limits, say)
    # The limit is one more than a body may have: aiohttp refuses what is as long as it.
    app = web.Application(client_max_size=MAX_BODY_BYTES + 1, middlewares=[_as_the_service])
    app.cleanup_ctx.append(endpoint.running)
    app.on_response_prepare.append(_number)
    app.router.add_post("/endpoints/{name}/invocations", endpoint.invoke)
    app.router.add_post("/endpoints/{name}/invocations-response-stream", endpoint.invoke_stream)
    app.router.add_get("/ping", endpoint.ping)
    return app


async def _number(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["x-amzn-RequestId"] = str(uuid.uuid4())


@web.middleware
async def _as_the_service(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ServiceError as error:
        headers = {"Content-Type": "application/json"}
        if error.code is not None:
            headers["x-amzn-ErrorType"] = error.code
        return web.Response(body=error.body, status=error.status, headers=headers)


class _Endpoint:
    """One endpoint while it runs; `running` opens and closes what it holds."""

    def __init__(
        self, name: str, router: Router, limits: Limits, say: Callable[[str], None]
    ) -> None:
        self._name = name
        self._router = router
        self._limits = limits
        self._say = say
        self._containers = Containers()

    async def running(self, _app: web.Application) -> AsyncIterator[None]:
        """Holds the connections to the containers, and looks after their health."""
        watch = asyncio.create_task(self._watch())
        yield
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        await self._containers.close()

    async def invoke(self, request: web.Request) -> web.Response:
        """InvokeEndpoint: one answer, whole."""
        call = self._call(request, streams=False)
        body = await _body(request)
        async with self._answer(call, body, self._limits.model_s) as answer:
            headers = {**_headers_of(answer), **_session_headers_of(answer)}
            headers["Content-Type"] = answer.headers.get("Content-Type", "application/json")
            return web.Response(body=await self._whole(answer), headers=headers)

    async def invoke_stream(self, request: web.Request) -> web.StreamResponse:
        """InvokeEndpointWithResponseStream: every part as it comes; a failure behind the first is an event of the stream."""
        call = self._call(request, streams=True)
        body = await _body(request)
        async with self._answer(call, body, self._limits.stream_s) as answer:
            headers = {**_headers_of(answer), "Content-Type": MEDIA_TYPE}
            headers[_CONTENT_TYPE] = answer.headers.get("Content-Type", "")
            response = web.StreamResponse(headers=headers)
            with contextlib.suppress(ConnectionResetError):  # the client has gone
                await response.prepare(request)
                async with contextlib.aclosing(_frames(answer)) as frames:
                    async for frame in frames:
                        await response.write(frame)
                await response.write_eof()
            return response

    async def ping(self, _request: web.Request) -> web.Response:
        """Healthy while an instance is in service; says which are."""
        held = self._router.num_sessions()
        instances = [
            {"url": one.url, "in_service": one.in_service, "sessions": held[one]}
            for one in self._router.instances
        ]
        healthy = any(one.in_service for one in self._router.instances)
        document = {"status": "Healthy" if healthy else "Unhealthy", "instances": instances}
        return web.json_response(document, status=200 if healthy else 503)

    def _call(self, request: web.Request, *, streams: bool) -> Call:
        return read_call(self._name, request.match_info["name"], request.headers, streams=streams)

    @contextlib.asynccontextmanager
    async def _answer(self, call: Call, body: bytes, total_s: float) -> AsyncIterator[Answer]:
        """A container's answer, as far as its headers, of which the router has learned.

        An instance that cannot be connected to has seen nothing of the request, which goes to another one.
        """
        while True:
            instance = self._router.choose(call.session_id)
            with instance.serving():
                try:
                    answer = await self._begin(instance, call, body, total_s)
                except Unreachable:
                    self._set_health(instance, in_service=False)
                    continue
                async with answer:
                    if answer.status >= 300:
                        raise model_error(self._name, answer.status, await self._whole(answer))
                    self._router.opened(answer.headers.get(SESSION_ID, ""), instance)
                    self._router.closed(answer.headers.get(CLOSED_SESSION_ID, ""))
                    yield answer
                    return

    async def _begin(self, instance: Instance, call: Call, body: bytes, total_s: float) -> Answer:
        begin_s = self._limits.model_s
        with self._failures():
            return await self._containers.invoke(
                instance.url, call, body, begin_s=begin_s, total_s=total_s
            )

    async def _whole(self, answer: Answer) -> bytes:
        with self._failures():
            return await answer.read()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except TimedOut:
            raise model_failed(self._name, 0, TIMED_OUT) from None
        except WentAway:
            raise model_failed(self._name, 500, WENT_AWAY) from None

    async def _watch(self) -> None:
        num_missed: Counter[Instance] = Counter()
        while True:
            await asyncio.sleep(self._limits.ping_s)
            for instance in self._router.instances:
                healthy = await self._containers.is_healthy(instance.url)
                num_missed[instance] = 0 if healthy else num_missed[instance] + 1
                if healthy or num_missed[instance] == _MAX_MISSED_PINGS:
                    self._set_health(instance, in_service=healthy)

    def _set_health(self, instance: Instance, *, in_service: bool) -> None:
        if instance.in_service != in_service:
            instance.in_service = in_service
            with contextlib.suppress(OSError):  # whoever read what is printed may have gone
                self._say(f"{instance.url} {'returns to' if in_service else 'leaves'} service")


async def _body(request: web.Request) -> bytes:
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise body_too_large()
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise body_too_large() from None


def _headers_of(answer: Answer) -> dict[str, str]:
    headers = {"x-Amzn-Invoked-Production-Variant": VARIANT}
    if CUSTOM_ATTRIBUTES in answer.headers:
        headers[CUSTOM_ATTRIBUTES] = answer.headers[CUSTOM_ATTRIBUTES]
    return headers


def _session_headers_of(answer: Answer) -> dict[str, str]:
    opened = answer.headers.get(SESSION_ID, "")
    headers = {NEW_SESSION_ID: opened} if parse_opened(opened) else {}
    if CLOSED_SESSION_ID in answer.headers:
        headers[CLOSED_SESSION_ID] = answer.headers[CLOSED_SESSION_ID]
    return headers


async def _frames(answer: Answer) -> AsyncGenerator[bytes, None]:
    try:
        async for part in answer.parts():
            yield payload_part(part)
    except TimedOut:
        fields = {"ErrorCode": "ModelInvocationTimeExceeded", "Message": TIMED_OUT}
        yield stream_error("ModelStreamError", fields)
    except WentAway:
        fields = {"ErrorCode": "StreamBroken", "Message": WENT_AWAY}
        yield stream_error("ModelStreamError", fields)
    except Exception:
        yield stream_error("InternalStreamFailure", {"Message": "An internal failure occurred."})
        raise
