"""The Responses API over WebSocket (https://www.openresponses.org/specification): frames `response.create`, and events."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
from msgspec import structs
from starlette.websockets import WebSocket

from ts_stateful.asgi.exchange import exchange
from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.asgi.request_headers import http_headers
from ts_stateful.asgi.websocket import Connection
from ts_stateful.frontend.dialects.openai_responder import OpenAiResponder
from ts_stateful.frontend.dialects.responses.ids import ResponseId
from ts_stateful.frontend.intake import Arrival
from ts_stateful.frontend.parsing.body import PUSHED
from ts_stateful.protocol.answers import encode
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.requests import Close
from ts_stateful.protocol.strict_json import convert, parse_json

__all__ = ["ResponseConnection"]

_Sessions = list[tuple[ModelFront, str]]
_PATH = "v1/responses"
_MAX_IDLE = 64  # `stream_id`s without a frame whose response is not stored


class _Frame(msgspec.Struct):
    type: Literal["response.create"]
    stream_id: Annotated[str, msgspec.Meta(max_length=128)] | None = None
    store: bool | None = True


_FRAMING = ("type", "stream_id", "store")


class _Event(msgspec.Struct):
    response: dict[str, Any] = {}


class ResponseConnection(Connection):
    """A connection on which frames with the same `stream_id` are answered one after the other.

    A response with `store: false` can be continued until the next one of its `stream_id`, and no more after that.
    """

    def __init__(self, models: Models, model: ModelFront, socket: WebSocket) -> None:
        super().__init__(models, model, socket)
        self._is_named = "model" in socket.path_params
        headers = http_headers(self._pairs, _PATH, model.names, method="POST")
        self._headers = structs.replace(headers, is_http=False, content_type="")
        self._lanes: dict[str | None, asyncio.Task[None]] = {}  # the last frame of each
        # By lane, in the order of use, the sessions of responses that are not stored; the last one can be continued.
        self._unstored: dict[str | None, _Sessions] = {}

    async def run(self) -> None:
        """Serve until the client disconnects."""
        try:
            await super().run()
        finally:
            for model, session_id in chain.from_iterable(self._unstored.values()):
                await self._close(model, session_id)

    def _begin(self, text: bytes) -> asyncio.Task[None]:
        try:
            document = parse_json(text)
            frame = convert({name: document[name] for name in _FRAMING if name in document}, _Frame)
        except StatefulError as error:
            self._models.count_refusal(error, self._model.name)
            return asyncio.ensure_future(self._refuse(error, None))
        rest = {name: document[name] for name in document if name not in ("type", "stream_id")}
        before = self._lanes.get(frame.stream_id)
        task = asyncio.ensure_future(self._answer(rest, frame, before))
        self._lanes[frame.stream_id] = task
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        super()._done(task)
        for lane in [lane for lane, last in self._lanes.items() if last is task]:
            del self._lanes[lane]

    async def _answer(
        self, document: dict[str, Any], frame: _Frame, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            model = await self._model_of(document)
            model.check_room()
        except StatefulError as error:
            self._models.count_refusal(error, self._model.name)
            await self._refuse(error, frame.stream_id)
            return
        kept: _Sessions = []
        if frame.store is False:
            kept = self._unstored.pop(frame.stream_id, kept)
            self._unstored[frame.stream_id] = kept
        data = {"data": msgspec.json.encode(document), "rpc": PUSHED}
        arrival = Arrival(data, self._headers, self._call)
        has_begun = False
        async with contextlib.aclosing(exchange(model, arrival)) as responses:
            async for response in responses:
                if response.status != 200 and not has_begun:
                    refused = _error(response.status, response.body)
                    await self._send(refused, frame.stream_id)
                    continue
                for line in response.body.splitlines():
                    if not has_begun:
                        shown = msgspec.json.decode(line, type=_Event).response.get("id", "")
                        found = ResponseId.parse(str(shown))
                        kept.append((model, found.session_id if found else ""))
                    has_begun = True
                    await self._send(line, frame.stream_id)
        while len(kept) > 1:
            await self._close(*kept.pop(0))
        while len(idle := self._unstored.keys() - self._lanes.keys()) > _MAX_IDLE:
            oldest = next(lane for lane in self._unstored if lane in idle)
            for model, session_id in self._unstored.pop(oldest):
                await self._close(model, session_id)

    async def _model_of(self, document: dict[str, Any]) -> ModelFront:
        name = document.get("model")
        if self._is_named or len(self._models) == 1 or not isinstance(name, str):
            return self._model
        return await self._models.find_named(name)

    async def _close(self, model: ModelFront, session_id: str) -> None:
        data = {"data": encode(Close(session_id=session_id, erase=True)), "rpc": PUSHED}
        arrival = Arrival(data, structs.replace(self._headers, path=""), self._call)
        async with contextlib.aclosing(exchange(model, arrival)) as responses:
            async for _ in responses:
                pass

    async def _refuse(self, error: StatefulError, lane: str | None) -> None:
        await self._send(_error(error.status, OpenAiResponder().refusal(error)), lane)

    async def _send(self, document: bytes, lane: str | None) -> None:
        if lane is not None:
            document = document[:-1] + b',"stream_id":' + msgspec.json.encode(lane) + b"}"
        await self._write(document)


def _error(status: int, body: bytes) -> bytes:
    """Return the event of an error, from an answer over HTTP."""
    error = msgspec.json.decode(body)["error"]
    return msgspec.json.encode({"type": "error", "status": status, "error": error})
