"""Writes of sessions to their logs, in order and on the threads of the store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ts_stateful.language.persistence.entries import LogEntry, log_of
from ts_stateful.protocol.errors import SessionExists, SessionMoved, StatefulError
from ts_stateful.session_log.log import Known
from ts_stateful.sessions.session import Session
from ts_stateful.store.base import StoreError
from ts_stateful.store.ordered_calls import CallQueue, StoreCalls

__all__ = ["Done", "Journal", "Write"]

Done = Callable[[StatefulError | None], None]


class Write(NamedTuple):
    """Entries that are written together, and that the store keeps for `ttl_s` seconds.

    `make` writes the values that they refer to, on a thread of the store, and returns them.
    """

    make: Callable[[], Sequence[LogEntry]]
    ttl_s: float
    creates_session: bool = False  # it begins the log


@dataclass(eq=False)
class _SessionWrites:
    """The log of one session, as far as this engine has written it."""

    known: Known = field(default_factory=Known)
    unmade: list[Write] = field(default_factory=list)  # committed, but not in the store:
    unwritten: list[LogEntry] = field(
        default_factory=list
    )  # first these entries, then those writes
    line: CallQueue = field(default_factory=CallQueue)
    has_moved: bool = False


class Journal:
    """The writes of one engine; all methods are for the engine's thread.

    With the policy `required`, a write that fails is reported and must be undone. With `best_effort` it is counted, and done
    together with the next one.
    """

    def __init__(self, calls: StoreCalls) -> None:
        self._calls = calls
        self._writes: WeakKeyDictionary[Session[Any], _SessionWrites] = WeakKeyDictionary()

    def write(self, session: Session[Any], write: Write, then: Done) -> None:
        """Add to the session's log, after earlier writes; `then` gets the error if it must be undone."""
        writes = self._writes.setdefault(session, _SessionWrites())

        def written(outcome: Any) -> None:
            part = "session" if write.creates_session else "turn"
            error = self._calls.reason(outcome, "session", part)
            is_taken = write.creates_session and not writes.known.num_entries
            if isinstance(error, SessionMoved) and is_taken:
                error = SessionExists("a session of this id is open already", field="session_id")
            then(error)

        job = partial(self._append, session.session_id, writes, write)
        self._calls.in_order(writes.line, job, written)

    def adopted(self, session: Session[Any], known: Known) -> None:
        """Note that the session was read from the store."""
        self._writes[session] = _SessionWrites(known)

    def is_saved(self, session: Session[Any]) -> bool:
        """Return True if everything that was committed is in the store."""
        writes = self._writes.get(session)
        return writes is not None and not (writes.unwritten or writes.unmade)

    def known(self, session: Session[Any]) -> Known:
        """Return the session's log, as far as this engine has seen it."""
        writes = self._writes.get(session)
        return Known() if writes is None else writes.known

    def run(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run a job on a thread of the store; `then` gets its result or its exception."""
        self._calls.run(job, then)

    def _append(self, session_id: str, writes: _SessionWrites, write: Write) -> bool:
        """Write all that is not written yet; return False if another engine owns the session. For a thread of the store."""
        if writes.has_moved:
            return False
        writes.unmade.append(write)
        log, known = log_of(self._calls.store, session_id), writes.known
        try:
            while writes.unwritten or writes.unmade:
                if not writes.unwritten:
                    writes.unwritten += writes.unmade[0].make()
                    del writes.unmade[0]
                    continue
                appended = log.append(writes.known, writes.unwritten[0], write.ttl_s)
                if appended is None:
                    writes.has_moved = True
                    return False
                writes.known = appended
                del writes.unwritten[0]
        except Exception:  # of a store; it is raised again
            if self._calls.policy == "required":  # it is undone
                writes.unwritten.clear()
                writes.unmade.clear()
                # A session whose opening failed is unknown to everybody: its log is removed.
                if write.creates_session and writes.known.num_entries:
                    with contextlib.suppress(StoreError):
                        log.remove()
                # If a part was written, the next write finds it, and the session is read from the store again.
                writes.known = known
            raise
        return True
