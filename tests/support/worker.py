"""A worker without TorchServe, in front of real engine processes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ts_stateful.config.schema import load_config
from ts_stateful.process.worker.dispatch import Dispatcher, ServedModel
from ts_stateful.process.worker.fork_server import ForkServer
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Request

__all__ = ["Worker", "eventually"]

# The limit for any operation on a slow machine; no test waits for it to pass.
WAIT_S = 90


def eventually(condition: Callable[[], bool]) -> None:
    """Return as soon as a condition is met."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Worker:
    """A worker as its engines see it."""

    def __init__(
        self,
        model_dir: Path,
        frontend_pid: int,
        *,
        fork_server: ForkServer | None = None,
        max_sessions: int = 8,
        **handler: Any,
    ) -> None:
        document = {
            "continuousBatching": True,
            "maxNumSequence": max_sessions,
            "maxSequenceJobQueueSize": 4,
            "sequenceMaxIdleMSec": 600_000,
            "handler": {"model": "model", "threads": 1, "onFull": "refuse", **handler},
        }
        self.events: dict[str, list[Event]] = {}
        self._arrived = threading.Condition()
        self._count = 0
        model = ServedModel(load_config(document), document, "tiny", model_dir, frontend_pid)
        self.dispatcher = Dispatcher(model, self, fork_server=fork_server)

    def post(self, event: Event) -> None:
        """Record an event."""
        with self._arrived:
            self.events.setdefault(event.request_id, []).append(event)
            self._arrived.notify_all()

    def submit(self, command: Request, **fields: Any) -> str:
        """Submit a request; return its id."""
        request_id = self._new_id()
        self.dispatcher.submit(Submit(request_id, command, **fields))
        return request_id

    def _new_id(self) -> str:
        self._count += 1
        return f"{id(self)}-{self._count}"

    def wait(self, request_id: str, kind: EventKind = EventKind.LAST) -> dict[str, Any]:
        """Wait for the first event of a kind; return its document."""

        def found() -> Event | None:
            events = self.events.get(request_id, [])
            return next((event for event in events if event.kind is kind), None)

        with self._arrived:
            assert self._arrived.wait_for(found, WAIT_S), "no answer"
            event = found()
        assert event is not None
        document: dict[str, Any] = json.loads(event.body or b"{}")
        return document

    def ask(self, command: Request, **fields: Any) -> dict[str, Any]:
        """Submit a request; return its answer."""
        return self.wait(self.submit(command, **fields))

    def describe(self) -> dict[str, Any]:
        """Return the description for the management API."""
        request_id = self._new_id()
        self.dispatcher.describe(request_id)
        return self.wait(request_id)

    def engine_pid(self, index: int = 0) -> int:
        """Return the process of one engine; 0 while it restarts."""
        return int(self.describe()["engines"][index]["pid"] or 0)

    def kill(self, number: int, index: int = 0) -> int:
        """Send a signal to one engine, which must run; return its process."""
        pid = self.engine_pid(index)
        assert pid, "there is no engine"  # a signal to 0 would reach all processes of the tests
        os.kill(pid, number)
        return pid
