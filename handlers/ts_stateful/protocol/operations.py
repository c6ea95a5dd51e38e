"""Operations on an engine's sessions that an operator asks for, and their outcome."""

from __future__ import annotations

from msgspec import Struct

from ts_stateful.protocol.answers import SessionInfo

__all__ = [
    "EvictSession",
    "ExpireSession",
    "ListSessions",
    "ListedSession",
    "Operation",
    "Outcome",
    "SetLogLevel",
]


class ListSessions(Struct, frozen=True, tag="list_sessions"):
    """List the sessions that are kept between requests; with `parked`, also the ids of those that left for the store."""

    parked: bool = False


class EvictSession(Struct, frozen=True, tag="evict_session"):
    """Remove the tensors of an idle session from the device and, if they can be computed again, from host memory."""

    session_id: str


class ExpireSession(Struct, frozen=True, tag="expire_session"):
    """End a session as if its time were up: at once, or after the turns that it has."""

    session_id: str


class SetLogLevel(Struct, frozen=True, tag="set_log_level"):
    """Change the least level of log lines, until the process ends."""

    level: str


Operation = ListSessions | EvictSession | ExpireSession | SetLogLevel


class ListedSession(Struct, frozen=True):
    """A session as operators see it, without content. Of a principal's session the tenant is the digits of its ids."""

    info: SessionInfo
    tenant: str | None = None


class Outcome(Struct, frozen=True):
    """The sessions that an operation was about, as they are now; none if the engine does not have them.

    With an `error`, nothing was done.
    """

    sessions: tuple[ListedSession, ...] = ()
    parked: tuple[str, ...] = ()
    error: str | None = None
