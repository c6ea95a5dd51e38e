"""An administration with scripted answers, at a real Unix socket."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

__all__ = ["FakeAdmin", "session_document", "status_document"]


class FakeAdmin:
    """Answers by method and path; `calls` are the requests as they came."""

    def __init__(self, path: Path) -> None:
        self.url = f"unix://{path}"
        self.calls: list[str] = []
        self.answers: dict[str, tuple[int, Any]] = {}
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                call = f"{self.command} {self.path}"
                fake.calls.append(call)
                status, document = fake.answers.get(call, (404, {"detail": "not scripted"}))
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = _answer

            def address_string(self) -> str:
                return "unix"

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingUnixStreamServer(str(path), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> FakeAdmin:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def session_document(session_id: str, **fields: Any) -> dict[str, Any]:
    """A session as the administration lists it."""
    return {
        "session_id": session_id,
        "age_s": 60.0,
        "idle_s": 5.0,
        "expires_at": "2026-01-31T12:00:00Z",
        "turns": 3,
        "tokens": 1200,
        "cached_tokens": 1199,
        "images": 0,
        "residency": "device",
        "device_bytes": 4096,
        "host_bytes": 0,
        "running": False,
        "waiting": 0,
        "saved": None,
        "tenant": None,
        "model": "chat",
        "engine": 0,
        **fields,
    }


def status_document(**fields: Any) -> dict[str, Any]:
    """The state of a server with one engine."""
    engine = {
        "model": "chat",
        "engine": 0,
        "pid": 42,
        "device": "cuda:0",
        "up": True,
        "sessions_open": 2,
        "turns_in_progress": 1,
        "device_bytes": 1 << 30,
        "device_budget_bytes": 1 << 32,
        "host_bytes": 0,
        "host_budget_bytes": 0,
        "tokens_generated": 99,
        "evictions": 7,
        "store_failures": 0,
    }
    return {
        "version": "0.1.0",
        "pid": 41,
        "status": "ready",
        "requests_in_flight": 1,
        "engines": [engine],
        **fields,
    }
