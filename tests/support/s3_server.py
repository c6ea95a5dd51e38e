"""A server of S3's protocol for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from moto.server import ThreadedMotoServer

__all__ = ["s3_server"]


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Start a server without buckets. Yield its endpoint."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()
