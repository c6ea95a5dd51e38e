"""Streams over one connection, as a server may send them."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from benchmarks.clients.http_stream import HttpConnection

EVENT = b'data: {"text": "a"}\n\n'


class Handler(BaseHTTPRequestHandler):
    """Sends an event in chunks, or in one piece with its length."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer as the path says."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        if self.path == "/chunked":
            self.send_header("Transfer-Encoding", "chunked")
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(EVENT), EVENT)
        else:
            self.send_header("Content-Length", str(len(EVENT)))
            body = EVENT
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.mark.parametrize("path", ["/chunked", "/whole"])
def test_a_connection_serves_several_streams(path: str) -> None:
    """Also those that are sent at once, with a length."""
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with contextlib.closing(HttpConnection("127.0.0.1", server.server_port)) as connection:
                for _ in range(3):
                    _, events = connection.stream(path, b"{}", {})
                    assert [event.document for event in events] == [{"text": "a"}]
        finally:
            server.shutdown()
            thread.join()
