"""The queue of events between the dispatcher's reader thread and TorchServe's worker thread."""

from __future__ import annotations

import threading
from typing import Protocol

from ts_stateful.protocol.events import Event

__all__ = ["Inbox", "Mailbox"]


class Mailbox(Protocol):
    """A receiver of events of the requests in flight."""

    def expect(self, request_id: str) -> None:
        """Accept events of this request from now on."""

    def post(self, event: Event) -> None:
        """Add an event, from any thread; drop it if its request is not expected."""

    def forget(self, request_id: str) -> None:
        """Drop the events of this request from now on. Idempotent."""


class Inbox:
    """Events by request; one thread posts, another waits and takes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: dict[str, list[Event]] = {}
        self._rung = False

    def __len__(self) -> int:
        """Return the number of expected requests."""
        return len(self._events)

    def expect(self, request_id: str) -> None:
        """See `Mailbox`."""
        with self._changed:
            self._events.setdefault(request_id, [])

    def post(self, event: Event) -> None:
        """See `Mailbox`."""
        with self._changed:
            waiting = self._events.get(event.request_id)
            if waiting is not None:
                waiting.append(event)
                self._changed.notify_all()

    def forget(self, request_id: str) -> None:
        """See `Mailbox`."""
        with self._changed:
            self._events.pop(request_id, None)

    def take(self, request_id: str) -> list[Event]:
        """Return the events of a request since the last call, in order."""
        with self._changed:
            events = self._events.get(request_id)
            if not events:
                return []
            self._events[request_id] = []
            return events

    def ring(self) -> None:
        """End a wait, or the next one."""
        with self._changed:
            self._rung = True
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is an event to take, for `timeout_s` at most; return True if it was ended by `ring`."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._rung or any(self._events.values()), max(0.0, timeout_s)
            )
            rung, self._rung = self._rung, False
            return rung
