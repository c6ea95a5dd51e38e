"""Requests that open a session and wait for a place in the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic

from msgspec import Struct

from ts_stateful.clock import Clock
from ts_stateful.engine.waiting import PendingRequest
from ts_stateful.protocol.errors import Overloaded, TooManySessions
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Fork, Step
from ts_stateful.sessions.session import StateT
from ts_stateful.sessions.table import SessionTable

__all__ = ["Backlog"]


class _Entry(Struct, eq=False):
    """A request that opens a session, and the later ones for it. At `due` they get the `refusal`."""

    requests: list[PendingRequest]
    due: float
    refusal: TooManySessions


class Backlog(Generic[StateT]):
    """Up to `most` sessions that wait for a place, each for up to `wait_s` seconds, the first one first."""

    def __init__(
        self, table: SessionTable[StateT], clock: Clock, *, most: int, wait_s: float
    ) -> None:
        self._table = table
        self._clock = clock
        self._most = most
        self._wait_s = wait_s
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        """Return the number of sessions that wait."""
        return len(self._entries)

    def add(self, request: PendingRequest, refusal: TooManySessions) -> bool:
        """Let a request wait that was refused; return False if it cannot."""
        message = request.message
        # A step opens a session also under the id of one that was closed.
        opens = message.creates_session or isinstance(message.command, Step)
        waits = opens and message.may_wait and not message.ephemeral
        if not waits or len(self._entries) >= self._most:
            return False
        due = self._clock.monotonic() + self._wait_s
        self._entries[_opened(message)] = _Entry([request], due, refusal.with_traceback(None))
        return True

    def join(self, request: PendingRequest) -> bool:
        """Return True if a request is for a session that waits; it waits with it."""
        for session_id in request.message.session_ids if self._entries else ():
            if session_id in self._entries:
                self._entries[session_id].requests.append(request)
                return True
        return False

    def take_ready(self) -> Iterator[PendingRequest]:
        """Take the requests of sessions that there is a place for. Each has to be admitted before the next is taken."""
        for session_id, entry in list(self._entries.items()):
            if self._has_place(entry.requests[0].message):
                del self._entries[session_id]
                yield from entry.requests

    def take_late(self) -> Iterator[PendingRequest]:
        """Take the requests of sessions that have waited too long, with their refusal."""
        now = self._clock.monotonic()
        for session_id, entry in list(self._entries.items()):
            if now >= entry.due:
                del self._entries[session_id]
                for request in entry.requests:
                    request.error = entry.refusal
                    yield request

    def next_deadline(self) -> float | None:
        """Return the clock's time at which the first session has waited too long, or None."""
        return min((entry.due for entry in self._entries.values()), default=None)

    def drop(self, request_id: str) -> None:
        """Forget a request whose client disconnected, unless later ones build on it."""
        for session_id, entry in list(self._entries.items()):
            if entry.requests[-1].message.request_id == request_id:
                entry.requests.pop()
            if not entry.requests:
                del self._entries[session_id]

    def _has_place(self, message: Submit) -> bool:
        places = self._table.places
        source = message.command.session_id if isinstance(message.command, Fork) else None
        spared = next((one for one in self._table if one.session_id == source), None)
        try:
            places.make(self._table, places.owners.owner_of(_opened(message)), spared)
        except Overloaded:
            return False
        return True


def _opened(message: Submit) -> str:
    """Return the id of the session that a request opens."""
    return message.session_ids[-1]
