"""Slots for work of many clients, given out fairly: the client and the request with the least work in progress come first."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from ts_stateful.protocol.errors import QuotaExceeded

__all__ = ["FairSlots", "Ticket"]


@dataclass(eq=False)
class Ticket:
    """A place in the queue; `granted` is done when it has become a slot, and cancelled when its request has ended before."""

    client: Hashable
    request: object
    granted: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class FairSlots:
    """At most `size` slots, of which one client has at most `per_client`. For one event loop.

    A client may have at most `max_held` tickets, waiting ones included. Work of one client never waits for another client's
    to leave the queue, only for a slot.
    """

    def __init__(self, size: int, per_client: int, max_held: int | None = None) -> None:
        self._size = size
        self._per_client = per_client
        self._max_held = max_held
        self.waiting: list[Ticket] = []
        self.running: set[Ticket] = set()  # those that have a slot
        self._in_progress: Counter[Hashable] = Counter()  # by client, and by request

    def enter(self, client: Hashable, request: object, count: int) -> list[Ticket]:
        """Queue `count` tickets of a request.

        Raises:
            QuotaExceeded: the client would have more than `max_held`. It gets none.
        """
        held = sum(ticket.client == client for ticket in (*self.waiting, *self.running))
        if count and self._max_held is not None and held + count > self._max_held:
            raise QuotaExceeded(
                f"{held} images of this client are being fetched or wait for it, and {self._max_held} may be;"
                " try again later",
                field="handler.media.queuedFetches",
                retry_after_s=1.0,
            )
        tickets = [Ticket(client, request) for _ in range(count)]
        self.waiting += tickets
        self._grant()
        return tickets

    def leave(self, ticket: Ticket) -> None:
        """Return a slot."""
        if ticket in self.running:
            self.running.discard(ticket)
            self._count(ticket, -1)
            self._grant()

    def abandon(self, request: object) -> None:
        """Remove a request's tickets that have no slot yet."""
        for ticket in [each for each in self.waiting if each.request is request]:
            self.waiting.remove(ticket)
            ticket.granted.cancel()

    def _grant(self) -> None:
        while len(self.running) < self._size:
            able = [t for t in self.waiting if self._in_progress[t.client] < self._per_client]
            if not able:
                return
            busy = self._in_progress  # of equal ones the first
            ticket = min(able, key=lambda one: (busy[one.client], busy[id(one.request)]))
            self.waiting.remove(ticket)
            self.running.add(ticket)
            self._count(ticket, 1)
            ticket.granted.set_result(None)

    def _count(self, ticket: Ticket, change: int) -> None:
        for key in (ticket.client, id(ticket.request)):
            self._in_progress[key] += change
            if not self._in_progress[key]:
                del self._in_progress[key]
