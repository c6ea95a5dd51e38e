"""Logs of sessions in a store."""

from __future__ import annotations

from collections.abc import Iterable

from ts_stateful.session_log.log import Known, append
from ts_stateful.session_log.records import Entry
from ts_stateful.store.base import Store


def write_log(
    store: Store, session_id: str, entries: Iterable[Entry], known: Known | None = None
) -> Known:
    """Adds entries behind what is known, or begins with them; returns what is known then."""
    known = known or Known()
    for entry in entries:
        after = append(store, session_id, known, entry)
        assert after is not None
        known = after
    return known
