"""A container that follows SageMaker's contract and does what the body of a request says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import WSMsgType, web

from ts_stateful.protocol.sagemaker import CLOSED_SESSION_ID, SESSION_ID

__all__ = ["FakeContainer"]


class FakeContainer:
    """Serves `app`. `seen` are the headers of the requests that arrived, `bodies` their bodies; so many pings more fail as
    `sick_pings` says.

    A body is a JSON object: `opens` and `closes` name what the session headers say; `status` and `says` are the answer; `parts`
    is a stream, which `breaks` or falls `silent` behind them; `waits` holds the answer back. `resume` ends every wait.
    """

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.sick_pings = 0
        self._resumed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.app = web.Application(client_max_size=10_000_000)
        self.app.router.add_post("/invocations", self._invoke)
        self.app.router.add_get("/ping", self._ping)
        self.app.router.add_get("/invocations-bidirectional-stream", self._talk)
        self.app.router.add_get("/elsewhere", self._talk)

    def resume(self) -> None:
        """Lets every answer that waits come; from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._resumed.set)

    async def _ping(self, _request: web.Request) -> web.Response:
        self.sick_pings -= 1
        return web.Response(status=500 if self.sick_pings >= 0 else 200)

    async def _invoke(self, request: web.Request) -> web.StreamResponse:
        self._loop = asyncio.get_running_loop()
        body = await request.read()
        self.seen.append({name.lower(): value for name, value in request.headers.items()})
        self.bodies.append(body)
        asked = json.loads(body) if body.startswith(b"{") else {}
        if asked.get("waits"):
            await self._resumed.wait()
        headers = {"Content-Type": "application/json", "X-Amzn-SageMaker-Custom-Attributes": "done"}
        if "opens" in asked:
            headers[SESSION_ID] = asked["opens"]
        if "closes" in asked:
            headers[CLOSED_SESSION_ID] = asked["closes"]
        if "parts" in asked:
            return await self._stream(request, asked, headers)
        says = asked.get("says", "{}").encode()
        return web.Response(body=says, status=asked.get("status", 200), headers=headers)

    async def _talk(self, request: web.Request) -> web.StreamResponse:
        """Sends its path, each frame, and `pinged` for a ping; the text `close` closes, and the query `no` refuses."""
        if request.query_string == "no":
            return web.Response(status=404)
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        await socket.send_str(request.path_qs)
        async for message in socket:
            if message.type is WSMsgType.PING:
                await socket.pong(message.data)
                await socket.send_str("pinged")
            elif message.data == "close":
                await socket.close(code=1011, message=b"no more")
            elif message.type is WSMsgType.TEXT:
                await socket.send_str(message.data)
            else:
                await socket.send_bytes(message.data)
        return socket

    async def _stream(
        self, request: web.Request, asked: dict[str, Any], headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in asked["parts"]:
            await response.write(part.encode())
        if asked.get("silent"):
            await self._resumed.wait()
        if asked.get("breaks") and request.transport is not None:
            request.transport.close()
            return response
        await response.write_eof()
        return response
