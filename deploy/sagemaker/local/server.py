"""The runtime API over HTTP, between clients and containers."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler

from deploy.sagemaker.local.calls import VARIANT, Invocation, read_invocation
from deploy.sagemaker.local.containers import (
    ContainerAnswer,
    Containers,
    TimedOut,
    Unreachable,
    WentAway,
)
from deploy.sagemaker.local.errors import (
    TIMED_OUT,
    WENT_AWAY,
    ServiceError,
    body_too_large,
    model_error,
    model_failed,
    validation_error,
)
from deploy.sagemaker.local.eventstream import MEDIA_TYPE, payload_part, stream_error
from deploy.sagemaker.local.routing import Instance, Router, parse_opened
from deploy.sagemaker.local.sockets import Refused, SocketLimits, Sockets
from ts_stateful.cli.terminal import Terminal
from ts_stateful.protocol.sagemaker import (
    CLOSED_SESSION_ID,
    CUSTOM_ATTRIBUTES,
    MAX_BODY_BYTES,
    SESSION_ID,
)

__all__ = ["ServiceLimits", "make_app"]

_MAX_MISSED_PINGS = 3  # in a row; a session that moves does not come back
_NEW_SESSION_ID = (
    "X-Amzn-SageMaker-New-Session-Id"  # `SESSION_ID` of a container's answers, for clients
)
_CONTENT_TYPE = "X-Amzn-SageMaker-Content-Type"  # of what a stream carries


@dataclass(frozen=True)
class ServiceLimits:
    """The time limits, and the interval of health checks.

    `model_s` limits a whole answer and the beginning of a stream, `stream_s` a whole stream. `sockets` are for streams in both
    directions.
    """

    model_s: float = 60.0
    stream_s: float = 480.0
    ping_s: float = 5.0
    sockets: SocketLimits = field(default_factory=SocketLimits)


_SERVICE = ServiceLimits()


def make_app(
    name: str, router: Router, terminal: Terminal, limits: ServiceLimits = _SERVICE
) -> web.Application:
    """Make the application of an endpoint. It prints a line when an instance leaves service or returns."""
    endpoint = _Endpoint(name, router, terminal, limits)
    # aiohttp refuses a body as long as its limit, so the limit is one byte more.
    app = web.Application(client_max_size=MAX_BODY_BYTES + 1, middlewares=[_as_the_service])
    app.cleanup_ctx.append(endpoint.running)
    app.on_response_prepare.append(_number)
    app.router.add_post("/endpoints/{name}/invocations", endpoint.invoke)
    app.router.add_post("/endpoints/{name}/invocations-response-stream", endpoint.invoke_stream)
    app.router.add_get("/endpoints/{name}/invocations-bidirectional-stream", endpoint.invoke_socket)
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
    """One endpoint; `running` starts and stops its health checks and connections."""

    def __init__(
        self, name: str, router: Router, terminal: Terminal, limits: ServiceLimits
    ) -> None:
        self._name = name
        self._router = router
        self._limits = limits
        self._terminal = terminal
        self._containers = Containers()
        self._sockets = Sockets(limits.sockets)

    async def running(self, _app: web.Application) -> AsyncIterator[None]:
        """Check the health of instances until the application stops."""
        watch = asyncio.create_task(self._watch())
        yield
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        await self._containers.close()
        await self._sockets.close()

    async def invoke(self, request: web.Request) -> web.Response:
        """Serve InvokeEndpoint: one whole answer."""
        call = self._call(request, streams=False)
        body = await _body(request)
        async with self._answer(call, body, self._limits.model_s) as answer:
            headers = {**_headers_of(answer), **_session_headers_of(answer)}
            headers["Content-Type"] = answer.headers.get("Content-Type", "application/json")
            return web.Response(body=await self._whole(answer), headers=headers)

    async def invoke_stream(self, request: web.Request) -> web.StreamResponse:
        """Serve InvokeEndpointWithResponseStream: each part at once. A failure after the headers is an event of the stream."""
        call = self._call(request, streams=True)
        body = await _body(request)
        async with self._answer(call, body, self._limits.stream_s) as answer:
            headers = {**_headers_of(answer), "Content-Type": MEDIA_TYPE}
            headers[_CONTENT_TYPE] = answer.headers.get("Content-Type", "")
            response = web.StreamResponse(headers=headers)
            with contextlib.suppress(ConnectionResetError):  # the client disconnected
                await response.prepare(request)
                async with contextlib.aclosing(_frames(answer)) as frames:
                    async for frame in frames:
                        await response.write(frame)
                await response.write_eof()
            return response

    async def invoke_socket(self, request: web.Request) -> web.StreamResponse:
        """Serve InvokeEndpointWithBidirectionalStream, by WebSocket. It has no session id, so any instance may get it."""
        self._call(request, streams=True)
        client = web.WebSocketResponse(max_msg_size=MAX_BODY_BYTES)
        if not client.can_prepare(request):
            raise validation_error("The request does not open a WebSocket.")
        while True:
            instance = self._router.choose(None)
            with instance.serving():
                try:
                    with self._failures():
                        container = await self._sockets.open(
                            instance.url, request.headers, self._limits.model_s
                        )
                except Unreachable:
                    self._set_health(instance, in_service=False)
                    continue
                except Refused as refused:
                    raise model_error(self._name, refused.status, b"") from None
                await client.prepare(request)
                await self._sockets.join(client, container)
                return client

    async def ping(self, _request: web.Request) -> web.Response:
        """List the instances. The status is 200 while one is in service, else 503."""
        held = self._router.num_sessions()
        instances = [
            {"url": one.url, "in_service": one.in_service, "sessions": held[one]}
            for one in self._router.instances
        ]
        healthy = any(one.in_service for one in self._router.instances)
        document = {"status": "Healthy" if healthy else "Unhealthy", "instances": instances}
        return web.json_response(document, status=200 if healthy else 503)

    def _call(self, request: web.Request, *, streams: bool) -> Invocation:
        name = request.match_info["name"]
        return read_invocation(self._name, name, request.headers, streams=streams)

    @contextlib.asynccontextmanager
    async def _answer(
        self, call: Invocation, body: bytes, total_s: float
    ) -> AsyncIterator[ContainerAnswer]:
        """Return a container's answer once its headers are there, and update the router from them.

        If an instance refuses the connection, it has seen nothing of the request, so another one gets it.
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

    async def _begin(
        self, instance: Instance, call: Invocation, body: bytes, total_s: float
    ) -> ContainerAnswer:
        begin_s = self._limits.model_s
        with self._failures():
            return await self._containers.invoke(
                instance.url, call, body, begin_s=begin_s, total_s=total_s
            )

    async def _whole(self, answer: ContainerAnswer) -> bytes:
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
            with contextlib.suppress(OSError):  # nothing may read standard output any more
                self._terminal.line(
                    f"{instance.url} {'returns to' if in_service else 'leaves'} service"
                )


async def _body(request: web.Request) -> bytes:
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise body_too_large()
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise body_too_large() from None


def _headers_of(answer: ContainerAnswer) -> dict[str, str]:
    headers = {"x-Amzn-Invoked-Production-Variant": VARIANT}
    if CUSTOM_ATTRIBUTES in answer.headers:
        headers[CUSTOM_ATTRIBUTES] = answer.headers[CUSTOM_ATTRIBUTES]
    return headers


def _session_headers_of(answer: ContainerAnswer) -> dict[str, str]:
    opened = answer.headers.get(SESSION_ID, "")
    headers = {_NEW_SESSION_ID: opened} if parse_opened(opened) else {}
    if CLOSED_SESSION_ID in answer.headers:
        headers[CLOSED_SESSION_ID] = answer.headers[CLOSED_SESSION_ID]
    return headers


async def _frames(answer: ContainerAnswer) -> AsyncGenerator[bytes, None]:
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
