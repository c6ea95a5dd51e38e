"""Logs of sessions in a store."""

from __future__ import annotations

from collections.abc import Iterable

from ts_stateful.language.persistence.entries import LogEntry, session_logs
from ts_stateful.session_log.log import Known
from ts_stateful.store.base import Store


def write_log(
    store: Store, session_id: str, entries: Iterable[LogEntry], known: Known | None = None
) -> Known:
    """Add entries after the known ones, or begin with them; return the log known then."""
    known = known or Known()
    for entry in entries:
        after = session_logs(store).log(session_id).append(known, entry)
        assert after is not None
        known = after
    return known
