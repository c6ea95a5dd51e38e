"""Sessions in the store: written turn by turn, read when they come from elsewhere.

Owns where in its log each session stands, and what is made up for after a write that failed. The engine's step never waits for
a disk or a network. Knows nothing of requests or of what entries mean; `session_records` does.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ts_stateful.protocol.errors import SessionExists, SessionMoved, StatefulError
from ts_stateful.session_log.log import Known, append, forget
from ts_stateful.session_log.records import Entry
from ts_stateful.sessions.session import Session
from ts_stateful.store.base import StoreError
from ts_stateful.store.ordered_calls import CallQueue, StoreCalls

__all__ = ["Done", "Journal", "Write"]

Done = Callable[[StatefulError | None], None]


class Write(NamedTuple):
    """What is written together: `make`, on a thread of the store, writes values that entries refer to, and gives the entries.

    All of it has to be kept for `ttl_s` seconds. `creates_session` says that it begins the log.
    """

    make: Callable[[], Sequence[Entry]]
    ttl_s: float
    creates_session: bool = False


@dataclass(eq=False)
class _Log:
    """The log of one session, as far as this process has written it."""

    known: Known = field(default_factory=Known)
    unmade: list[Write] = field(default_factory=list)  # committed here, but not in the store:
    unwritten: list[Entry] = field(default_factory=list)  # first these entries, then those writes
    line: CallQueue = field(default_factory=CallQueue)
    has_moved: bool = False


class Journal:
    """Writes for one engine; all methods are for the engine's thread.

    With the policy `required` a write that fails is reported, and what it was about must be undone. With `best_effort` it is
    counted, and made up for with the next one.
    """

    def __init__(self, calls: StoreCalls) -> None:
        self.writer = uuid.uuid4().hex
        self._calls = calls
        self._logs: WeakKeyDictionary[Session[Any], _Log] = WeakKeyDictionary()

    def write(self, session: Session[Any], write: Write, then: Done) -> None:
        """Adds to the session's log, behind what was asked for before; `then` gets the reason if it must be undone."""
        log = self._logs.setdefault(session, _Log())

        def written(outcome: Any) -> None:
            part = "session" if write.creates_session else "turn"
            reason = self._calls.reason(outcome, "session", part)
            if (
                isinstance(reason, SessionMoved)
                and write.creates_session
                and not log.known.num_entries
            ):
                reason = SessionExists("a session of this id is open already", field="session_id")
            then(reason)

        self._calls.in_order(
            log.line, partial(self._append, session.session_id, log, write), written
        )

    def adopted(self, session: Session[Any], known: Known) -> None:
        """The session was read from the store, where its log has these entries."""
        self._logs[session] = _Log(known)

    def is_saved(self, session: Session[Any]) -> bool:
        """Whether everything that was committed is in the store."""
        log = self._logs.get(session)
        return log is not None and not (log.unwritten or log.unmade)

    def known(self, session: Session[Any]) -> Known:
        """The session's log, as far as this process knows what is in the store."""
        log = self._logs.get(session)
        return Known() if log is None else log.known

    def run(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Does something with the store on one of its threads; `then` gets what came of it, also if that is an exception."""
        self._calls.run(job, then)

    def _append(self, session_id: str, log: _Log, write: Write) -> bool:
        """Writes everything that is not written yet; False if the session belongs to somebody else. On a store's thread."""
        if log.has_moved:
            return False
        log.unmade.append(write)
        known = log.known
        try:
            while log.unwritten or log.unmade:
                if not self._flush(session_id, log, write.ttl_s):
                    log.has_moved = True
                    return False
                if log.unmade:
                    log.unwritten += log.unmade[0].make()
                    del log.unmade[0]
        except Exception:
            if self._calls.policy == "required":  # it is undone
                log.unwritten.clear()
                log.unmade.clear()
                if (
                    write.creates_session and log.known.num_entries
                ):  # it has begun the log, of which nobody was told
                    with contextlib.suppress(StoreError):
                        forget(self._calls.store, session_id)
                # Where a part of it is in the store, the next write finds that, and the session is taken from there again.
                log.known = known
            raise
        return True

    def _flush(self, session_id: str, log: _Log, ttl_s: float) -> bool:
        while log.unwritten:
            known = append(self._calls.store, session_id, log.known, log.unwritten[0], ttl_s)
            if known is None:
                return False
            log.known = known
            del log.unwritten[0]
        return True
