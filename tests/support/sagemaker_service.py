"""The local endpoint with two scripted containers, for boto3."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from tests.support.fake_client import FakeTime
from tests.support.fake_container import FakeContainer
from tests.support.sagemaker import ENDPOINT, boto_client, serving
from ts_stateful.sagemaker_local.routing import Instance, Router
from ts_stateful.sagemaker_local.server import Limits, make_app

__all__ = ["EXPIRES", "Service"]

EXPIRES = "; Expires=2001-09-09T01:46:40Z"  # 1,000,000,000


class Service:
    """An endpoint with two containers, and boto3's client of it. With `deaf` its output is closed."""

    def __init__(self, limits: Limits) -> None:
        self.time = FakeTime()
        self.containers = [FakeContainer(), FakeContainer()]
        self.said: list[str] = []
        self.deaf = False
        self._stack = contextlib.ExitStack()
        urls = self._stack.enter_context(serving(*(one.app for one in self.containers)))
        self.router = Router([Instance(url) for url in urls], self.time.monotonic)
        app = make_app(ENDPOINT, self.router, limits, self._say)
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

    def _say(self, line: str) -> None:
        self.said.append(line)
        if self.deaf:
            raise BrokenPipeError

    def _closed(self, answer: dict[str, Any]) -> dict[str, Any]:
        self._stack.callback(answer["Body"].close)
        return answer

    @staticmethod
    def _options(session_id: str | None, body: Any, options: dict[str, Any]) -> dict[str, Any]:
        sent = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        named = {} if session_id is None else {"SessionId": session_id}
        return {"EndpointName": ENDPOINT, "Body": sent, **named, **options}
