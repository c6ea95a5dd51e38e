"""A server of files, and of a hub's protocol, for programs that download models."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["hub_server"]

_COMMIT = "0123456789abcdef0123456789abcdef01234567"


class _Handler(BaseHTTPRequestHandler):
    files: dict[str, bytes]  # by name
    asked: list[str]

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        """Send the headers of a file."""
        self._answer(with_body=False)

    def do_GET(self) -> None:
        """Send a file, or the list of all."""
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        if path.startswith("/api/models/"):
            body: bytes | None = json.dumps(self._listing(path)).encode()
        else:
            body = self.files.get(path.rpartition(f"/resolve/{_COMMIT}/")[2].lstrip("/"))
        self.send_response(404 if body is None else 200)
        self.send_header("X-Repo-Commit", _COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(body or b"").hexdigest()}"')
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if with_body and body:
            self.wfile.write(body)

    def _listing(self, path: str) -> Any:
        if "/tree/" in path:
            return [
                {"type": "file", "path": name, "size": len(body), "oid": "0" * 40}
                for name, body in self.files.items()
            ]
        name = path.removeprefix("/api/models/").partition("/revision/")[0]
        siblings = [{"rfilename": file} for file in self.files]
        return {"id": name, "sha": _COMMIT, "siblings": siblings, "private": False}


@contextlib.contextmanager
def hub_server(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve files; those of any model of a hub are the same. Yield the address, and the paths that were asked for."""
    asked: list[str] = []
    handler = type("Handler", (_Handler,), {"files": files, "asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()
