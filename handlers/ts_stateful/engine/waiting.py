"""Requests that wait for a session: one queue per session id, and the requests whose wait is over."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from msgspec import Struct

from ts_stateful.protocol.errors import SessionError, StatefulError
from ts_stateful.protocol.events import Submit

__all__ = ["Missing", "PendingRequest", "WaitingRequests"]


class Missing(NamedTuple):
    """The result of a search for a session that the store does not have.

    `error` is what became of it, if the store remembers. `position` is where a log of this id goes on.
    """

    error: SessionError | None = None
    position: Any = None


class PendingRequest(Struct, eq=False):
    """A request that is not admitted yet; `missing` has the ids that the store was searched for in vain.

    With an `error` it is refused instead of admitted. `has_looked`: the store was asked if its session, which is here, went on
    elsewhere; `is_unsure`: it did not answer.
    """

    message: Submit
    missing: dict[str, Missing] = {}
    error: StatefulError | None = None
    has_looked: bool = False
    is_unsure: bool = False


class WaitingRequests:
    """The queues of one engine. A session id has one while it is searched for, replayed or removed."""

    def __init__(self) -> None:
        self._queues: dict[str, list[PendingRequest]] = {}
        self._ready: deque[PendingRequest] = deque()

    def __contains__(self, session_id: object) -> bool:
        """Return True if requests for this session have to wait."""
        return session_id in self._queues

    def block(self, session_id: str) -> None:
        """Let requests for this session wait until it is released."""
        self._queues.setdefault(session_id, [])

    def add(self, session_id: str, request: PendingRequest) -> None:
        """Put a request at the end of its session's queue."""
        self._queues.setdefault(session_id, []).append(request)

    def has_retry(self, session_id: str) -> bool:
        """Return True if an engine that died had a request that waits for this session."""
        return any(request.message.is_retry for request in self._queues.get(session_id, ()))

    def first(self, session_id: str) -> Submit | None:
        """Return the request that has waited longest for this session, if there is one."""
        queue = self._queues.get(session_id)
        return queue[0].message if queue else None

    def release(
        self,
        session_id: str,
        *,
        missing: Missing | None = None,
        error: StatefulError | None = None,
        is_unsure: bool = False,
    ) -> None:
        """End a session's queue after a look into the store. Its requests are ready.

        The look ended with `missing`, failed with `error`, or had no answer.
        """
        for request in self._queues.pop(session_id, ()):
            if missing is not None:
                request.missing[session_id] = missing
            request.error = error
            request.is_unsure |= is_unsure
            request.has_looked |= request.message.command.session_id == session_id
            self._ready.append(request)

    def resume(self, message: Submit) -> None:
        """Make a request ready that had waited for something else."""
        self._ready.append(PendingRequest(message))

    @property
    def has_ready(self) -> bool:
        """True if there is a request whose wait ended."""
        return bool(self._ready)

    def next_ready(self) -> PendingRequest:
        """Take the request whose wait ended first; there must be one."""
        return self._ready.popleft()

    def drop(self, request_id: str) -> None:
        """Forget a request whose client disconnected; its session's queue stays, since the search goes on."""
        for queue in self._queues.values():
            queue[:] = [request for request in queue if request.message.request_id != request_id]
