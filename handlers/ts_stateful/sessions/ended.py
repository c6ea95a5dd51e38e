"""The memory of sessions that ended: for an hour their ids answer with what became of them."""

from __future__ import annotations

from typing import NamedTuple

from lru import LRU

from ts_stateful.clock import Clock
from ts_stateful.protocol.errors import SessionClosed, SessionError, SessionExpired, SessionNotFound

__all__ = ["EndedSessions"]

_REMEMBER_S = 3600.0
_REMEMBER_COUNT = 100_000  # the oldest are forgotten first


class _Ended(NamedTuple):
    at: float
    error: type[SessionError]
    origin: str


class EndedSessions:
    """The ends of sessions, by id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended: LRU[str, _Ended] = LRU(_REMEMBER_COUNT)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._ended

    def add(self, session_id: str, error: type[SessionError], origin: str = "") -> None:
        """Remember that a session ended, which the request `origin` opened; requests for it fail with `error`."""
        self._ended[session_id] = _Ended(self._clock.monotonic(), error, origin)

    def check_open(self, session_id: str, origin: str) -> None:
        """Raise `SessionClosed` if this very session was closed here: a store may have failed to remove it."""
        ended = self._ended.get(session_id)
        if ended is not None and ended.error is SessionClosed and origin and ended.origin == origin:
            raise self.error(session_id)

    def forget(self, session_id: str) -> None:
        """Forget an id that is in use again."""
        self._ended.pop(session_id, None)

    def error(self, session_id: str) -> SessionError:
        """Return the error for a session that is not open."""
        ended = self._ended.get(session_id)
        if ended is None or self._clock.monotonic() - ended.at >= _REMEMBER_S:
            return SessionNotFound("no session of this id is open here", field="session_id")
        what = "has expired" if ended.error is SessionExpired else "was closed"
        return ended.error(f"the session {what}")
