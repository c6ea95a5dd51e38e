"""Bidirectional streams: a WebSocket to a container for each of a client's.

The service speaks event streams over HTTP/2 with clients and WebSocket with containers. Here both sides have the frames of the
container's side: text for `DataType` UTF8, bytes for BINARY, and a close frame for `ModelStreamError`. See
https://aws.amazon.com/blogs/machine-learning/introducing-bidirectional-streaming-for-real-time-inference-on-amazon-sagemaker-ai.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from aiohttp import WSMsgType, web

from deploy.sagemaker.local.containers import TimedOut, Unreachable
from ts_stateful.protocol.sagemaker import MAX_BODY_BYTES

__all__ = ["Refused", "SocketLimits", "Sockets"]

_PATH = "invocations-bidirectional-stream"
_PATH_HEADER = "X-Amzn-SageMaker-Model-Invocation-Path"
_QUERY_HEADER = "X-Amzn-SageMaker-Model-Query-String"
_Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


@dataclass(frozen=True)
class SocketLimits:
    """The longest time of a stream, and the interval of pings to containers, which must answer them."""

    total_s: float = 1800.0
    ping_s: float = 60.0


class Refused(Exception):
    """A container that answers the handshake with an error of this `status`."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Sockets:
    """Connections to containers. Call `close` in the loop that uses them."""

    def __init__(self, limits: SocketLimits) -> None:
        self._limits = limits
        self._http: aiohttp.ClientSession | None = None

    async def open(
        self, url: str, headers: Mapping[str, str], begin_s: float
    ) -> aiohttp.ClientWebSocketResponse:
        """Connect to a container within `begin_s`, at the path and with the query that the headers of a request name.

        Raises:
            Unreachable, TimedOut, Refused: there is no connection.
        """
        if self._http is None:  # in the loop
            self._http = aiohttp.ClientSession()
        query = headers.get(_QUERY_HEADER)
        address = f"{url}/{headers.get(_PATH_HEADER, _PATH).lstrip('/')}"
        connecting = self._http.ws_connect(
            f"{address}?{query}" if query else address,
            heartbeat=self._limits.ping_s,
            max_msg_size=MAX_BODY_BYTES,
        )
        try:
            return await asyncio.wait_for(connecting, begin_s)
        except asyncio.TimeoutError:
            raise TimedOut from None
        except aiohttp.WSServerHandshakeError as error:
            raise Refused(error.status) from None
        except aiohttp.ClientError:
            raise Unreachable from None

    async def join(
        self, client: web.WebSocketResponse, container: aiohttp.ClientWebSocketResponse
    ) -> None:
        """Pass frames on in both directions until one side closes, or the stream is too long."""
        ways = [
            asyncio.ensure_future(_pass_on(client, container)),
            asyncio.ensure_future(_pass_on(container, client)),
        ]
        try:
            await asyncio.wait(
                ways, timeout=self._limits.total_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await container.close()
            await client.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.close()


async def _pass_on(source: _Socket, target: _Socket) -> None:
    with contextlib.suppress(ConnectionError):  # the target is closed
        while True:
            message = await source.receive()
            if message.type is WSMsgType.TEXT:
                await target.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await target.send_bytes(message.data)
            elif message.type is WSMsgType.CLOSE:
                await target.close(
                    code=message.data or 1000, message=(message.extra or "").encode()
                )
                return
            else:  # closed without a frame, or broken
                return
