"""Where events wait for the thread that answers.

Owns the handing over from the dispatcher's reader thread to TorchServe's worker thread. Knows nothing of what events mean.
"""

from __future__ import annotations

import threading
from typing import Protocol

from ts_stateful.protocol.events import Event

__all__ = ["Inbox", "Mailbox"]


class Mailbox(Protocol):
    """What takes the events of the requests in flight."""

    def expect(self, request_id: str) -> None:
        """Takes events of this request from now on."""

    def post(self, event: Event) -> None:
        """Takes an event, from any thread; one of a request that is not expected is let go."""

    def forget(self, request_id: str) -> None:
        """Takes no more events of this request; those that wait are let go. May be called again."""


class Inbox:
    """Events by request; one thread posts, another one waits and takes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: dict[str, list[Event]] = {}

    def __len__(self) -> int:
        """The number of requests that are expected."""
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
        """The events of a request that have not been taken yet, in order."""
        with self._changed:
            events = self._events.get(request_id)
            if not events:
                return []
            self._events[request_id] = []
            return events

    def wait(self, timeout_s: float) -> None:
        """Returns when there is an event to take, at once if there is one already, at the latest after `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: any(self._events.values()), max(0.0, timeout_s))
