"""The operations of operators on the sessions of one engine."""

from __future__ import annotations

import logging
from typing import Any

from ts_stateful.engine.engine import SessionEngine
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.operations import (
    EvictSession,
    ExpireSession,
    ListedSession,
    ListSessions,
    Operation,
    Outcome,
)
from ts_stateful.sessions.session import Session

__all__ = ["administer"]

_BUSY = "the session has a turn in progress; wait for its end, or close the session"


def administer(engine: SessionEngine[Any], operation: Operation) -> Outcome:
    """Carry out an operation on the engine's thread, and return its outcome."""
    try:
        kept = [session for session in engine.table if not session.ephemeral]
        if isinstance(operation, ListSessions):
            parked = tuple(engine.table.places.parked) if operation.parked else ()
            return _outcome(engine, *kept, parked=parked)
        if isinstance(operation, EvictSession | ExpireSession):
            # Unlike `SessionTable.get`, this is no use of it.
            session = next((one for one in kept if one.session_id == operation.session_id), None)
            if session is None:
                return Outcome()
            if isinstance(operation, ExpireSession):
                return _expire(engine, session)
            return _evict(engine, session)
        logging.getLogger().setLevel(operation.level)
        return Outcome()
    except engine.kind.fatal:
        raise
    except Exception as error:  # the boundary: a defect fails the operation, not the engine
        return Outcome(error=defect(error, type(operation).__name__).message)


def _outcome(
    engine: SessionEngine[Any], *sessions: Session[Any], parked: tuple[str, ...] = ()
) -> Outcome:
    listed = (ListedSession(engine.kind.describe(one), _tenant(one)) for one in sessions)
    return Outcome(tuple(listed), parked)


def _evict(engine: SessionEngine[Any], session: Session[Any]) -> Outcome:
    if session.busy:
        return Outcome(error=_BUSY)
    session.state.to_record()
    engine.table.tally.changed(session)
    return _outcome(engine, session)


def _expire(engine: SessionEngine[Any], session: Session[Any]) -> Outcome:
    session.expires_at = min(session.expires_at, session.last_used)
    engine.table.tally.shortened(session)
    outcome = _outcome(engine, session)
    engine.table.expire()
    engine.settle()
    return outcome


def _tenant(session: Session[Any]) -> str | None:
    """Return the tenant, unless a client has claimed one that no terminal can show."""
    tenant = session.tenant
    return tenant if isinstance(tenant, str) and tenant.isprintable() else None
