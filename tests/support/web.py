"""A web server on loopback with scripted answers, and a `Fetcher`'s name server, connections and clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpcore
import pytest

from ts_stateful.clock import Clock
from ts_stateful.media.connect import Resolver
from ts_stateful.media.fetch import Fetcher
from ts_stateful.protocol.errors import MediaError

__all__ = [
    "BODY",
    "FIELD",
    "OTHER_PUBLIC",
    "PUBLIC",
    "Connector",
    "MakeFetcher",
    "Names",
    "Route",
    "Site",
    "StepClock",
    "answer",
    "endless",
    "raw",
    "redirect",
    "refusal",
]

FIELD = "images[0].url"
PUBLIC, OTHER_PUBLIC = "93.184.216.34", "2606:4700::1111"
BODY = b"the bytes of an image"
Route = Callable[[BaseHTTPRequestHandler], None]
MakeFetcher = Callable[..., Fetcher]


class Site(ThreadingHTTPServer):
    """A web server on loopback whose routes write the raw answer; records the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.routes: dict[str, Route] = {"/": answer(BODY)}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.released = threading.Event()  # a route that never answers waits for it
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that leave early, as tests do."""

    def stop(self) -> None:
        self.released.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        self.server.routes[self.path](self)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def answer(body: bytes = b"", status: int = 200, **headers: str) -> Route:
    def route(handler: BaseHTTPRequestHandler) -> None:
        lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
        head = f"HTTP/1.1 {status} Whatever\r\n{''.join(lines)}\r\n"
        handler.wfile.write(head.encode("latin-1") + body)

    return route


def redirect(location: str, status: int = 302) -> Route:
    return answer(status=status, Location=location, Set_Cookie="a=b", Content_Length="0")


def endless(start: bytes, again: bytes) -> Route:
    """Write until the client has left."""

    def route(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + start)
        while True:
            handler.wfile.write(again)

    return route


class StepClock(Clock):
    """A clock that moves on by `step_s` with every reading."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s = 1000.0
        self.step_s = step_s

    def monotonic(self) -> float:
        self.now_s += self.step_s
        return self.now_s


class Names(Resolver):
    """A name server that gives its answers in turn, the last one for ever; records the questions.

    `before` is called before each answer.
    """

    def __init__(self, *answers: Sequence[str], before: Callable[[], object] = list) -> None:
        self._answers = list(answers)
        self._before = before
        self.asked: list[str] = []

    def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        self._before()
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class Connector(httpcore.SyncBackend):
    """Connections to the test's server instead of the asked address, which is recorded.

    An address in `dead` refuses; without a server every address does.
    """

    def __init__(self, site: Site | None = None, dead: Iterable[str] = ()) -> None:
        self._site = site
        self._dead = frozenset(dead)
        self.connected: list[tuple[str, int]] = []

    def connect_tcp(
        self, host: str, port: int, *args: Any, **kwargs: Any
    ) -> httpcore.NetworkStream:
        self.connected.append((host, port))
        if self._site is None or host in self._dead:
            raise httpcore.ConnectError("refused")
        return super().connect_tcp("127.0.0.1", self._site.server_port, *args, **kwargs)


def raw(data: bytes) -> Route:
    def route(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(data)

    return route


def refusal(fetcher: Fetcher, url: str, error: type[MediaError]) -> str:
    """Return the message of the refusal of `url`; check that it is exactly this error."""
    with pytest.raises(error) as caught:
        fetcher.fetch(url, FIELD)
    assert type(caught.value) is error
    assert caught.value.field == FIELD
    return caught.value.message
