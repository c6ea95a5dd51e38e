"""The tier below host memory: KV states that are written to the store before they have to leave, and read back.

The states that would be dropped next are written before their room is needed, so no turn waits for a write. Reading begins when
a request for the session arrives. States that cannot be written or read are computed again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from ts_stateful.language.conversation.context import Context, Stored
from ts_stateful.language.conversation.matching import same_states
from ts_stateful.language.kv.cache import Snapshot
from ts_stateful.language.network.load import Model
from ts_stateful.language.persistence.kv_records import ReadKV, StoredKV, Transcript
from ts_stateful.language.persistence.session_records import SessionRecords
from ts_stateful.language.text.dialogue import common_prefix
from ts_stateful.sessions.session import Session
from ts_stateful.sessions.table import SessionTable
from ts_stateful.store.ordered_calls import CallQueue, StoreCalls

__all__ = ["KvOffload"]

logger = logging.getLogger(__name__)

_READY = 0.5  # of device and host memory: free, or in the store as well
_READERS = 2  # threads of the store that read at the same time; one writes, the others write logs
_PAUSE_S = 30.0  # between a write that failed and the next one

_Session = Session[Context]


class KvOffload:
    """The KV states of one engine's sessions in a store, at most `budget_bytes`. All methods are for the engine's thread.

    Only sessions of which `records` keeps everything are written: states reveal what was said. `num_read` counts sessions that
    received states, `num_failed` reads and writes that failed.
    """

    def __init__(
        self,
        model: Model,
        table: SessionTable[Context],
        calls: StoreCalls,
        records: SessionRecords,
        budget_bytes: int,
    ) -> None:
        self.num_read = self.num_failed = 0
        self._media_tokens = model.media_tokens
        self._table = table
        self._stored = StoredKV(model, calls.store)
        self._calls = calls
        self._records = records
        self._budget = budget_bytes
        self._clock = records.clock
        self._lines: WeakKeyDictionary[_Session, CallQueue] = WeakKeyDictionary()
        self._waiting: deque[Callable[[], None]] = deque()
        self._num_reading = 0
        self._is_writing = False
        self._resume_at = 0.0

    @property
    def num_bytes(self) -> int:
        """Bytes of the states of open sessions that are in the store."""
        return sum(session.state.stored.num_bytes for session in self._table)

    def recall(self, session: _Session, then: Callable[[_Session], None]) -> None:
        """Begin to read the states of a session that has work but no states; call `then` when it may go on.

        Until then the states are `incoming`, and their room on the device is reserved.
        """
        context = session.state
        num_tokens = context.num_stored
        num_bytes = context.kv.most_bytes(num_tokens)
        if not num_tokens or context.kv.length or context.incoming:
            return
        if not self._table.make_room(num_bytes):
            return
        context.incoming, context.reserved = True, num_bytes
        self._table.tally.changed(session)
        self._waiting.append(partial(self._read, session, num_tokens, then))
        self._next_read()

    def tidy(self) -> None:
        """Begin to write the states that would be dropped next, until enough memory can be freed at once."""
        if self._is_writing or self._clock.monotonic() < self._resume_at:
            return
        session = self._next_to_write()
        if session is None:
            return
        self._is_writing = True
        ttl_s = max(1.0, session.expires_at - self._clock.monotonic())
        snapshot = session.state.kv.snapshot()
        write = partial(self._stored.write, _transcript(session), snapshot, ttl_s)
        self._calls.in_order(self._line(session), write, partial(self._written, session, snapshot))

    def lend(self, source: _Session, fork: _Session) -> None:
        """Let a fork without states of its own read those of its source, if the store still has them."""
        whole, part = source.state, fork.state
        if part.kv.length == 0:
            length = min(whole.num_stored, common_prefix(whole.log, part.log))
            owner = whole.stored.owner or (source.session_id, source.origin)
            part.stored = Stored(length, owner=owner)

    def remove(self, session: _Session) -> None:
        """Remove the states of a session, for instance of one that leaves the table: nothing would count their bytes."""
        remove = partial(self._stored.remove, session.session_id)
        self._calls.in_order(self._line(session), remove, self._removed)

    def _next_read(self) -> None:
        if self._waiting and self._num_reading < _READERS:
            self._num_reading += 1
            self._waiting.popleft()()

    def _read(self, session: _Session, num_tokens: int, then: Callable[[_Session], None]) -> None:
        transcript = _transcript(session, session.state.stored.owner)
        read = partial(self._stored.read, transcript, num_tokens)
        done = partial(self._arrived, session, transcript, then)
        self._calls.in_order(self._line(session), read, done)

    def _arrived(
        self,
        session: _Session,
        transcript: Transcript,
        then: Callable[[_Session], None],
        outcome: Any,
    ) -> None:
        context = session.state
        context.incoming, context.reserved = False, 0
        self._num_reading -= 1
        if isinstance(outcome, ReadKV):
            kv = outcome.kv
            self.num_failed += not outcome.is_whole
            num_bytes = kv.valid_bytes
            # It may have gone back meanwhile.
            held = context.log, context.images
            kv.truncate(same_states(*held, transcript.log, transcript.images, self._media_tokens))
            if context.stored.owner is None:
                context.stored = Stored(kv.length, num_bytes)
            else:  # it has states of its own now
                context.stored = Stored()
            self.num_read += kv.length > 0
            context.recall(kv)
        else:
            self._failed(outcome, "read")
        self._table.tally.changed(session)
        then(session)
        self._next_read()

    def _next_to_write(self) -> _Session | None:
        table, budget = self._table, self._table.limits.budget_bytes
        ready, wanted = budget - table.device_bytes - table.tally.host_bytes, _READY * budget
        if ready >= wanted:
            return None
        order = table.leaving()
        # Room in the store comes from sessions that have states only there, the least recently used first, and from those
        # that leave memory later.
        below = [s for s in reversed(list(table)) if not s.state.kv.length]
        room = self._budget - self.num_bytes + sum(map(_removable, [*below, *order]))
        for at, session in enumerate(order):
            context = session.state
            if ready >= wanted:
                break
            if context.is_stored:
                ready += context.kv.num_bytes
            elif self._can_write(session) and context.kv.valid_bytes <= room:
                self._make_room(session, [*below, *reversed(order[at + 1 :])])
                return session
            room -= _removable(session)
        return None

    def _can_write(self, session: _Session) -> bool:
        position = session.state.log_position
        has_log = position.known.num_entries > 0 and not position.is_lost
        return has_log and self._records.keeps(session)

    def _make_room(self, session: _Session, others: list[_Session]) -> None:
        """Remove stored states of the `others` until those of a session fit the budget."""
        context = session.state
        needed = context.kv.valid_bytes
        excess = self.num_bytes - context.stored.num_bytes + needed - self._budget
        for other in others:
            if excess <= 0:
                break
            if _removable(other):
                excess -= other.state.stored.num_bytes
                other.state.stored = Stored()
                self.remove(other)

    def _written(self, session: _Session, snapshot: Snapshot, outcome: Any) -> None:
        self._is_writing = False
        if isinstance(outcome, int):
            # It may have gone back since the snapshot.
            session.state.stored = Stored(min(outcome, snapshot.length), snapshot.num_bytes)
            self.tidy()
        elif outcome is None:
            self._lost(session)
            self.tidy()
        else:
            self._resume_at = self._clock.monotonic() + _PAUSE_S
            self._failed(outcome, "written")

    def _lost(self, session: _Session) -> None:
        """Note that another server ended a session; its next turn is refused. Drop its states unless a turn needs them."""
        context = session.state
        context.log_position.is_lost, context.stored = True, Stored()
        is_here = any(one is session for one in self._table)  # else it ended here, too
        if is_here and not session.busy and not context.incoming:
            context.to_record()
            self._table.tally.changed(session)

    def _removed(self, outcome: Any) -> None:
        if isinstance(outcome, Exception):
            self._failed(outcome, "removed")

    def _failed(self, outcome: Exception, what: str) -> None:
        self.num_failed += 1
        logger.warning("KV states could not be %s: %s: %s", what, type(outcome).__name__, outcome)

    def _line(self, session: _Session) -> CallQueue:
        return self._lines.setdefault(session, CallQueue())


def _removable(session: _Session) -> int:
    """Return the bytes in the store that a session does not need now."""
    return 0 if session.busy or session.state.incoming else session.state.stored.num_bytes


def _transcript(session: _Session, owner: tuple[str, str] | None = None) -> Transcript:
    """Return the transcript of a session, or that of the `owner` from which it was forked."""
    context = session.state
    session_id, origin = owner or (session.session_id, session.origin)
    return Transcript(session_id, origin, list(context.log), list(context.images), context.adapter)
