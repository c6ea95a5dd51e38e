"""The local endpoint with two scripted containers, for boto3."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

from deploy.sagemaker.local.routing import Instance, Router
from deploy.sagemaker.local.server import ServiceLimits, make_app
from tests.support.clock import FakeClock
from tests.support.fake_container import FakeContainer
from tests.support.sagemaker import ENDPOINT, boto_client, serving
from ts_stateful.cli.terminal import Terminal

__all__ = ["EXPIRES", "Service"]

EXPIRES = "; Expires=2023-11-14T22:14:20Z"  # a minute after the clock of `Service`


class _Screen(Terminal):
    """A terminal that keeps its lines. It breaks after each one while `is_broken` is set."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.lines: list[str] = []
        self.is_broken = False

    def line(self, text: str = "") -> None:
        """See `Terminal`."""
        self.lines.append(text)
        if self.is_broken:
            raise BrokenPipeError


class Service:
    """An endpoint with two containers, and boto3's client of it."""

    def __init__(self, limits: ServiceLimits) -> None:
        self.clock = FakeClock()
        self.containers = [FakeContainer(), FakeContainer()]
        self.screen = _Screen()
        self._stack = contextlib.ExitStack()
        urls = self._stack.enter_context(serving(*(one.app for one in self.containers)))
        self.router = Router([Instance(url) for url in urls], self.clock)
        app = make_app(ENDPOINT, self.router, self.screen, limits)
        (self.url,) = self._stack.enter_context(serving(app))
        self.boto = boto_client(self.url, read_timeout=30)
        self._stack.callback(self.boto.close)

    def close(self) -> None:
        """Stop everything."""
        self._stack.close()

    def invoke(self, session_id: str | None = None, body: Any = None, **options: Any) -> Any:
        """Call InvokeEndpoint."""
        return self._closed(self.boto.invoke_endpoint(**self._options(session_id, body, options)))

    def stream(self, session_id: str | None = None, body: Any = None, **options: Any) -> Any:
        """Call InvokeEndpointWithResponseStream."""
        options = self._options(session_id, body, options)
        return self._closed(self.boto.invoke_endpoint_with_response_stream(**options))

    def open(self, name: str) -> int:
        """Open a session; return the number of its container."""
        before = [len(one.seen) for one in self.containers]
        self.invoke("NEW_SESSION", {"opens": name + EXPIRES})
        return next(i for i, one in enumerate(self.containers) if len(one.seen) > before[i])

    def _closed(self, answer: dict[str, Any]) -> dict[str, Any]:
        self._stack.callback(answer["Body"].close)
        return answer

    @staticmethod
    def _options(session_id: str | None, body: Any, options: dict[str, Any]) -> dict[str, Any]:
        sent = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        named = {} if session_id is None else {"SessionId": session_id}
        return {"EndpointName": ENDPOINT, "Body": sent, **named, **options}
