"""Writes of sessions to their logs: in order, on the threads of the store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple

from msgspec import Struct

from ts_stateful.protocol.errors import SessionExists, SessionMoved, StatefulError
from ts_stateful.session_log.codec import EntryT
from ts_stateful.session_log.log import Known
from ts_stateful.session_log.ownership import ClosedEntry, Doubtful, Ownership, SessionLogs
from ts_stateful.store.base import StoreError, StoreUnavailable
from ts_stateful.store.ordered_calls import CallQueue, StoreCalls

__all__ = ["GRACE_S", "Done", "Journal", "LogPosition", "Write", "Written"]

# The store keeps a session for so long after its time is up: a turn that is in progress then is still written.
GRACE_S = 3600.0

Done = Callable[[StatefulError | None], None]


class Written(NamedTuple):
    """An entry to add to a log, and the `keys` below its prefix of the values that go when it is dropped."""

    entry: Struct
    keys: Sequence[str] = ()


class Write(NamedTuple):
    """An entry that the store keeps for `ttl_s` seconds.

    `make` writes the values that it names, on a thread of the store; it gets the entry's position. It returns None if another
    engine has that position. If it can `stand_alone`, no earlier entry of the session is needed any more.
    """

    make: Callable[[int], Written | None]
    ttl_s: float
    creates_session: bool = False  # it begins the log
    stand_alone: bool = False


@dataclass(eq=False, slots=True)
class LogPosition:
    """The log of one session, as far as this engine has seen and written it."""

    known: Known = field(default_factory=Known)
    keys: list[str] = field(default_factory=list)  # those that the store has, below its prefix
    # Committed, but not in the store: first what is `unwritten`, then the `unmade` writes.
    unwritten: Written | None = None
    unmade: list[Write] = field(default_factory=list)
    doubtful: Doubtful | None = None
    is_lost: bool = False  # nothing more is written: the session goes on elsewhere
    queue: CallQueue = field(default_factory=CallQueue)

    @property
    def is_saved(self) -> bool:
        """True if everything that was committed is in the store."""
        return self.known.num_entries > 0 and not (self.unwritten or self.unmade)

    @property
    def can_leave(self) -> bool:
        """True if the store has exactly what was committed, and no write is under way."""
        is_exact = self.doubtful is None and not self.is_lost
        return self.is_saved and is_exact and not self.queue.is_busy


class Journal(Generic[EntryT]):
    """The writes of one engine; all methods are for the engine's thread.

    With the policy `required`, a write that fails is reported and must be undone. With `best_effort` it is counted, and done
    together with the next one. `whole` and `part` are the client's words for what is written.
    """

    def __init__(
        self, calls: StoreCalls, logs: SessionLogs[EntryT], *, whole: str, part: str
    ) -> None:
        self._calls = calls
        self._logs = logs
        self._whole, self._part = whole, part

    def write(self, session_id: str, position: LogPosition, write: Write, then: Done) -> None:
        """Add to the session's log, after earlier writes; `then` gets the error if it must be undone."""

        def written(outcome: Any) -> None:
            part = self._whole if write.creates_session else self._part
            error = self._calls.reason(outcome, self._whole, part)
            is_taken = write.creates_session and not position.known.num_entries
            if isinstance(error, SessionMoved) and is_taken:
                error = SessionExists("a session of this id is open already", field="session_id")
            then(error)

        job = partial(self._append, session_id, position, write)
        self._calls.in_order(position.queue, job, written)

    def end(
        self,
        session_id: str,
        position: LogPosition,
        closed: ClosedEntry,
        then: Callable[[Any], None],
    ) -> None:
        """Remove a session that ended, after earlier writes; `then` gets None or the exception of the store.

        One that expired stays if another engine uses it. A store that does not answer is asked again later.
        """
        ownership = self._logs.ownership(session_id)

        def job() -> None:
            ownership.end(closed, position.known, position.keys)

        def ended(outcome: Any) -> None:
            known, keys, doubtful = position.known, position.keys, position.doubtful
            if isinstance(outcome, StoreUnavailable) and known.num_entries:
                self._calls.again(partial(ownership.end_again, closed, known, keys, doubtful))
            then(outcome)

        self._calls.in_order(position.queue, job, ended)

    def look_after(self, session_id: str, position: LogPosition) -> Callable[[], bool] | None:
        """Return what looks, on a thread of the store, if another engine continued the session or ended it.

        None: the store does not have all that was committed.
        """
        has_all = position.is_saved and not position.queue.is_busy
        if not (has_all or position.is_lost):
            return None
        ownership = self._logs.ownership(session_id)
        return partial(ownership.has_more, position.known, position.doubtful)

    def when_written(self, position: LogPosition, then: Callable[[], None]) -> bool:
        """Call `then` after the writes that are under way; return False if there are none."""
        if not position.queue.is_busy:
            return False
        self._calls.in_order(position.queue, lambda: None, lambda outcome: then())
        return True

    def _append(self, session_id: str, position: LogPosition, write: Write) -> bool:
        """Write all that is not written yet; return False if another engine owns the session. For a thread of the store."""
        if position.is_lost:
            return False
        if write.stand_alone:
            position.unmade.clear()
        position.unmade.append(write)
        ownership = self._logs.ownership(session_id)
        log = ownership.log
        try:
            if position.doubtful is not None and position.unwritten is None:  # it was undone
                ownership.take_back(position.doubtful)
                position.doubtful = None
            while position.unwritten or position.unmade:
                known, unwritten = position.known, _next_entry(position, write.ttl_s)
                after = unwritten and log.append(
                    known, unwritten.entry, write.ttl_s, drops=write.stand_alone
                )
                if unwritten and after:
                    position.known, position.doubtful, position.unwritten = after, None, None
                    own = [*unwritten.keys, log.key(known.num_entries)]
                    position.keys += own
                elif not ownership.frees(known):
                    position.is_lost = True
                    return False
        except Exception:  # of a store; it is raised again
            if self._calls.policy == "required":
                self._undo(ownership, position)
            raise
        if write.stand_alone:
            with contextlib.suppress(StoreError):  # the next time removes what is left
                log.store.delete_keys([key for key in position.keys if key not in own])
                position.keys = own
        return True

    def _undo(self, ownership: Ownership[EntryT], position: LogPosition) -> None:
        position.unwritten = None
        position.unmade.clear()
        if position.doubtful is not None:  # now, or before the next write
            with contextlib.suppress(StoreError):
                ownership.take_back(position.doubtful)
                position.doubtful = None


def _next_entry(position: LogPosition, ttl_s: float) -> Written | None:
    """Return the next entry, which is doubtful from now on, or None if another engine has its position."""
    if position.unwritten is None:
        position.unwritten = position.unmade[0].make(position.known.num_entries)
        if position.unwritten is None:
            return None
        del position.unmade[0]
    position.doubtful = Doubtful(position.known, position.unwritten.entry, ttl_s)
    return position.unwritten
