"""Calls to one engine that it has not answered: pings, and the operations of operators."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from ts_stateful.process.messages import AdminAnswer, AdminRequest, Ping
from ts_stateful.protocol.errors import EngineUnavailable
from ts_stateful.protocol.operations import Operation, Outcome

__all__ = ["EngineCalls", "MessageSender"]


class MessageSender(Protocol):
    """The way to an engine."""

    def send(self, message: Any) -> bool:
        """Send a message; return False if there is no engine."""


class EngineCalls:
    """The unanswered calls, for any thread. Pings are answered in their order, operations by their ids."""

    def __init__(self, sender: MessageSender) -> None:
        self._sender = sender
        self._lock = threading.Lock()
        self._pings: deque[Callable[[], None]] = deque()
        self._asked: dict[str, Future[Outcome]] = {}

    def ping(self, then: Callable[[], None]) -> None:
        """Send a ping; call `then` after its answer, or at once if there is no engine."""
        with self._lock:
            if sent := self._sender.send(Ping()):
                self._pings.append(then)
        if not sent:
            then()

    def ask(self, operation: Operation) -> Future[Outcome]:
        """Send an operation; its result is `EngineUnavailable` if there is no engine, or it exits before the answer."""
        request_id, asked = uuid.uuid4().hex, Future[Outcome]()
        asked.set_running_or_notify_cancel()  # a caller that gives up must not make the answer an error
        with self._lock:
            if sent := self._sender.send(AdminRequest(request_id, operation)):
                self._asked[request_id] = asked
        if not sent:
            asked.set_exception(_unavailable())
        return asked

    def pinged(self) -> None:
        """Take the answer to the oldest ping."""
        with self._lock:
            then = self._pings.popleft() if self._pings else None
        if then is not None:
            then()

    def answered(self, answer: AdminAnswer) -> None:
        """Take the answer to an operation."""
        with self._lock:
            asked = self._asked.pop(answer.request_id, None)
        if asked is not None:
            asked.set_result(answer.outcome)

    def lost(self) -> None:
        """End all calls: the engine has exited."""
        with self._lock:
            pings, self._pings = self._pings, deque()
            asked, self._asked = self._asked, {}
        for then in pings:
            then()
        for one in asked.values():
            one.set_exception(_unavailable())


def _unavailable() -> EngineUnavailable:
    return EngineUnavailable("the engine does not run; try again later", retry_after_s=1.0)
