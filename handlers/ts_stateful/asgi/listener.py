"""uvicorn with bounds on the headers of requests, and without signal handlers of its own."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ssl
import termios
from collections.abc import Iterator
from functools import partial
from typing import Any

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ts_stateful.asgi.body import discard
from ts_stateful.asgi.settings import FrontSettings, Tls

__all__ = ["Listener", "make_listener"]

_MAX_HEADER_BYTES = 65_536  # of a request line and its headers
_HEADER_S = 20.0  # for them to come
_KEEP_ALIVE_S = 620  # longer than proxies keep idle connections, which is up to 10 minutes
_SHUTDOWN_S = 5
_LINGER_S = 0.2  # until a client has acknowledged all that was sent


class Listener(uvicorn.Server):
    """A server that its owner stops by `should_exit`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the owner."""
        yield


def make_listener(app: ASGIApp, settings: FrontSettings, *, tls: Tls | None = None) -> Listener:
    """Return a server of `app` that is not started."""
    secure: dict[str, Any] = {}
    if tls is not None:
        secure = {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
        if tls.client_ca is not None:
            secure |= {"ssl_ca_certs": tls.client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}

    config = uvicorn.Config(
        app,
        http=_BoundedProtocol,
        ws="websockets-sansio",
        ws_max_size=settings.max_body_bytes,
        ws_per_message_deflate=False,  # a small message can become a large one
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        **secure,
    )
    return Listener(config)


class _RequestParser(httptools.HttpRequestParser):
    """A parser that reads on where a request proposes another protocol, as Java's client does with HTTP/2.

    The library ends the request after the headers then, and takes its body for the other protocol.
    """

    declined: bytes | None = None  # such headers, without the proposal

    def feed_data(self, data: Any) -> None:
        """Parse the next bytes, and such headers again."""
        while True:
            try:
                super().feed_data(data)
                return
            except httptools.HttpParserUpgrade as end:
                if self.declined is None:
                    raise
                data, self.declined = self.declined + data[end.args[0] :], None


class _BoundedProtocol(HttpToolsProtocol):
    """A connection that is closed if the headers of a request are too long, or take too long.

    What may come beside a body in parts, extensions of these and headers after the last one, is as long at most.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parser: _RequestParser = _RequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self._num_bytes = 0  # since the request began, or the last part of its body came
        self._has_come_on = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the time of the first request's headers."""
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time."""
        self._end()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Disconnect an idle client. TLS would wait for it to close its side, and delay the server's stop."""
        socket = self.transport.get_extra_info("socket")
        super().shutdown()
        if self.transport.is_closing():
            self.loop.call_later(_LINGER_S, self._abandon, socket)

    def _abandon(self, socket: Any) -> None:
        # What the client has not acknowledged; without such bytes, none are left in the transport's buffers either.
        if self in self.connections and not any(fcntl.ioctl(socket, termios.TIOCOUTQ, bytes(4))):
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Start the time of another request's headers."""
        super().on_message_begin()
        self._begin()

    def on_headers_complete(self) -> None:
        """Stop the time. Clients of HTTP/1.0 read no chunks, so their answers end with the connection.

        Raises:
            ValueError: they came at once, and are too long; the parser closes the connection.
        """
        self._end()
        num_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if num_bytes > _MAX_HEADER_BYTES:
            raise ValueError("the headers are too long")
        proposed = dict(self.headers).get(b"upgrade", b"websocket").lower()
        if self.parser.should_upgrade() and proposed != b"websocket":
            version = self.parser.get_http_version().encode()
            lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
            lines += [b"%b: %b" % pair for pair in self.headers if pair[0] != b"upgrade"]
            self.parser.declined = b"\r\n".join([*lines, b"", b""])
            return
        super().on_headers_complete()
        cycle: Any = self.cycle
        if cycle is not None and not cycle.keep_alive:
            if self.scope["http_version"] == "1.0":
                cycle.chunked_encoding = False
            cycle.send = partial(_send_and_close, cycle)

    def on_body(self, body: bytes) -> None:
        """Count from here on."""
        self._come_on()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Count from here on."""
        self._come_on()
        if self.parser.declined is None:
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Count the bytes that bring nothing to its end, and are no body."""
        self._has_come_on = False
        super().data_received(data)
        if not self._has_come_on:
            self._num_bytes += len(data)
            if self._num_bytes > _MAX_HEADER_BYTES:
                self.transport.close()

    def _come_on(self) -> None:
        self._has_come_on, self._num_bytes = True, 0

    def _begin(self) -> None:
        self._end()
        self._has_come_on = False
        self._deadline = self.loop.call_later(_HEADER_S, self.transport.close)

    def _end(self) -> None:
        self._come_on()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


async def _send_and_close(cycle: Any, message: Any) -> None:
    """Send an answer with which the connection ends. A client that still sends its body would lose it by the close."""
    send = partial(RequestResponseCycle.send, cycle)
    if cycle.scope["http_version"] == "1.0":
        cycle.expected_content_length = len(message.get("body", b""))  # none was promised
    if cycle.more_body and message["type"].endswith("body") and not message.get("more_body"):
        await send(message | {"more_body": True})
        await discard(cycle.receive)
        message = {"type": message["type"]}
    await send(message)
