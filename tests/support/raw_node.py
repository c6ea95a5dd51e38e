"""A node that records the requests it receives, byte for byte as far as framing goes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

__all__ = ["RawNode", "Received", "connection", "exchange", "raw_node"]


class Received(NamedTuple):
    """A request, and the number of the connection that brought it."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


class RawNode(ThreadingHTTPServer):
    """Answers every request with 200, and HAProxy's checks too, which it does not record."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Received] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that leave in the middle of a request."""

    @property
    def port(self) -> int:
        """Return the port that the system chose."""
        return int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RawNode

    def do_GET(self) -> None:
        """Read the body by its framing, record the request and answer."""
        body = self._body()
        if self.headers.get("host") != "node":
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Received(self.requestline, headers, body, self.client_address[1])
            self.server.requests.append(request)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_POST = do_GET

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") is None:
            return self.rfile.read(int(self.headers.get("content-length", "0")))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def raw_node() -> Iterator[RawNode]:
    """Serve on loopback until the end of the block."""
    with RawNode() as node:
        thread = threading.Thread(target=node.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield node
        finally:
            node.shutdown()
            thread.join()


def connection(port: int) -> socket.socket:
    """Connect to loopback."""
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def exchange(port: int, data: bytes) -> bytes:
    """Send bytes on a connection of their own, and read until the other side closes it."""
    with connection(port) as raw:
        raw.sendall(data)
        answer = b""
        while piece := raw.recv(65_536):
            answer += piece
    return answer
