"""The way of events from the dispatcher's reader threads to the coroutines of one loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from ts_stateful.protocol.events import Event, EventKind

__all__ = ["AsyncMailbox"]


class _Slot:
    """The events of one request, and the coroutine that waits for the next."""

    __slots__ = ("events", "is_answered", "waiter")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.is_answered = False  # the last of the events is the request's
        self.waiter: asyncio.Future[None] | None = None


class AsyncMailbox:
    """Events by request. A `Mailbox`.

    A step of an engine has an event for each running turn. All of them wake the loop once.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots: dict[str, _Slot] = {}
        self._incoming: deque[Event] = deque()
        self._is_woken = False
        self._num_answered = 0

    def __len__(self) -> int:
        """Return the number of expected requests, without those whose answer waits for its turn in a stream."""
        return len(self._slots) - self._num_answered

    def expect(self, request_id: str) -> None:
        """See `Mailbox`; called in the loop."""
        # Asking for the loop is a call of the system, in Python 3.11.
        self._loop = self._loop or asyncio.get_running_loop()
        self._slots[request_id] = _Slot()

    def post(self, event: Event) -> None:
        """See `Mailbox`."""
        if self._loop is None:
            return
        self._incoming.append(event)
        # `_deliver` clears the flag before it empties the queue, so no event is missed.
        if not self._is_woken:
            self._is_woken = True
            # A closed loop has no client left to answer; the reader thread must survive it.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def forget(self, request_id: str) -> None:
        """See `Mailbox`; called in the loop."""
        if (slot := self._slots.pop(request_id, None)) is not None:
            self._set_answered(slot, False)

    async def take(self, request_id: str) -> list[Event]:
        """Wait for events of an expected request, and return all there are, in order."""
        slot = self._slots[request_id]
        if not slot.events:
            assert self._loop is not None  # since `expect`
            slot.waiter = self._loop.create_future()
            try:
                await slot.waiter
            finally:
                slot.waiter = None
        return self.take_now(request_id)

    def take_now(self, request_id: str) -> list[Event]:
        """Return the events of an expected request that are there, in order."""
        slot = self._slots[request_id]
        events, slot.events = slot.events, []
        self._set_answered(slot, False)
        return events

    def _deliver(self) -> None:
        self._is_woken = False
        while self._incoming:
            event = self._incoming.popleft()
            slot = self._slots.get(event.request_id)
            if slot is not None:
                slot.events.append(event)
                self._set_answered(slot, event.kind is EventKind.LAST)
                if slot.waiter is not None and not slot.waiter.done():
                    slot.waiter.set_result(None)

    def _set_answered(self, slot: _Slot, is_answered: bool) -> None:
        self._num_answered += is_answered - slot.is_answered
        slot.is_answered = is_answered
