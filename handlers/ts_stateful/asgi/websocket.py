"""Sessions over WebSocket: documents of docs/protocol.md in both directions."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from msgspec import structs
from starlette.websockets import WebSocket, WebSocketDisconnect

from ts_stateful.asgi.exchange import exchange
from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.request_headers import http_headers
from ts_stateful.frontend.intake import Arrival
from ts_stateful.frontend.parsing.body import PUSHED
from ts_stateful.principals.authenticator import Call
from ts_stateful.protocol.answers import encode
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import InvalidRequest, StatefulError

__all__ = ["Connection", "SessionConnection"]

Tag = str | int | None

_MAX_OPEN = 64  # requests of one connection without their last answer
_MAX_ID = 128
_TRY_AGAIN_LATER = 1013  # https://www.iana.org/assignments/websocket
_NOT_FOUND = 1008


class Connection(ABC):
    """An accepted connection, whose messages are answered by tasks, side by side."""

    def __init__(self, models: Models, model: ModelFront, socket: WebSocket) -> None:
        self._models = models
        self._model = model
        self._socket = socket
        self._pairs = tuple(socket.headers.items())
        self._call = Call(self._pairs)
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        self._places = asyncio.Semaphore(_MAX_OPEN)

    @classmethod
    def endpoint(
        cls, models: Models, default: str | None = None
    ) -> Callable[[WebSocket], Awaitable[None]]:
        """Return an endpoint: a connection to the model that its path names, or to `default`.

        It is closed, with the reason, if there is none.
        """

        async def serve(socket: WebSocket) -> None:
            try:
                model = await models.find(socket.path_params.get("model", default))
            except StatefulError as error:
                models.count_refusal(error, socket.path_params.get("model"))
                await socket.accept()
                code = _NOT_FOUND if error.status == 404 else _TRY_AGAIN_LATER
                await socket.close(code, error.message[:120])
                return
            await socket.accept()
            await cls(models, model, socket).run()

        return serve

    async def run(self) -> None:
        """Serve until the client disconnects, which drops its requests."""
        try:
            while (text := await self._next_message()) is not None:
                await self._places.acquire()
                task = self._begin(text)
                self._tasks.add(task)
                task.add_done_callback(self._done)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @abstractmethod
    def _begin(self, text: bytes) -> asyncio.Task[None]:
        """Return a task that answers a message."""

    async def _next_message(self) -> bytes | None:
        """Return the next message; None after the end of the connection."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")
        data: bytes = message.get("bytes") or b""
        return data if text is None else text.encode("utf-8", "surrogatepass")

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._places.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            defect(error, "an answer over WebSocket")

    async def _write(self, document: bytes) -> None:
        async with self._writing:
            # The client may have disconnected; the next `receive` reports that.
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await self._socket.send_text(document.decode())


class SessionConnection(Connection):
    """A connection of sessions.

    A request may have an `id`, which each of its answers has too. Its answer is one text message, or with `stream` several.
    """

    def __init__(self, models: Models, model: ModelFront, socket: WebSocket) -> None:
        super().__init__(models, model, socket)
        # Messages are not framed as those of HTTP are.
        self._headers = structs.replace(
            http_headers(self._pairs, "", model.names), is_http=False, is_tagged=True
        )

    def _begin(self, text: bytes) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._answer(text))

    async def _answer(self, text: bytes) -> None:
        tag: Tag = None
        try:
            tag = _tag_of(text)
            self._model.check_room()
        except StatefulError as error:
            self._models.count_refusal(error, self._model.name)
            await self._send(encode(error.to_body()), tag)
            return
        arrival = Arrival({"data": text, "rpc": PUSHED}, self._headers, self._call)
        async with contextlib.aclosing(exchange(self._model, arrival)) as responses:
            async for response in responses:
                await self._send(response.body, tag)

    async def _send(self, document: bytes, tag: Tag) -> None:
        if tag is not None:  # before the other keys
            document = b'{"id":' + msgspec.json.encode(tag) + b"," + document[1:]
        await self._write(document)


class _Tagged(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(max_length=_MAX_ID)] | int | None = None


def _tag_of(text: bytes) -> Tag:
    """Return the `id` of a request. A document that cannot be read has none: its parser refuses it.

    Raises:
        InvalidRequest: it is no short text and no integer.
    """
    try:
        return _decode(text).id
    except msgspec.ValidationError as error:
        if "$.id" not in str(error):
            return None
        raise InvalidRequest(
            f"expected a text of up to {_MAX_ID} characters, or an integer", field="id"
        ) from None
    except (msgspec.DecodeError, RecursionError):
        return None


_decode = msgspec.json.Decoder(_Tagged).decode
