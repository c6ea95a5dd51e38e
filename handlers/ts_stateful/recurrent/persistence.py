"""Sequences that outlive their engine: steps are written before they are answered, and found again where they are missing.

Owns when something is written, and the search for sequences that are not here: requests for one wait for it. No pass waits for
a store. Without one everything counts as written at once, and nothing is found.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from lru import LRU
from msgspec import structs
from torch import Tensor

from ts_stateful.config.schema import Config
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import (
    InvalidRequest,
    SessionError,
    SessionExpired,
    StatefulError,
    StoreFailed,
)
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Step
from ts_stateful.recurrent.batch import InputRow
from ts_stateful.recurrent.sequence import SequenceState
from ts_stateful.recurrent.slots import SlotPool
from ts_stateful.recurrent.step import PendingStep
from ts_stateful.recurrent.step_records import (
    Answered,
    Entry,
    Found,
    LogPosition,
    Value,
    append,
    find,
    remove,
)
from ts_stateful.sessions.session import Session
from ts_stateful.sessions.table import SessionTable
from ts_stateful.store.access import StoreAccess
from ts_stateful.store.base import Store, StoreError
from ts_stateful.store.ordered_calls import ResultQueue, StoreCalls

__all__ = ["Backing", "StepPersistence"]

logger = logging.getLogger(__name__)

Done = Callable[[StatefulError | None], None]
_Session = Session[SequenceState]
_WRITER = uuid.uuid4().hex  # of this process


class Backing(NamedTuple):
    """A store, where in it the sequences of one model are, and how what came of a call gets to the engine's thread."""

    access: StoreAccess
    scope: str
    results: ResultQueue


class StepPersistence:
    """The sequences of one engine in a store, or in none; all methods are for the engine's thread.

    `deliver` gets the requests that have waited, or why they cannot be served. `adopt` takes in a sequence that was found, and
    whether it was in use; it stands where it was last committed, and the steps since then are its work.
    """

    def __init__(
        self,
        backing: Backing | None,
        config: Config,
        table: SessionTable[SequenceState],
        pool: SlotPool,
        *,
        clock: Callable[[], float],
        utc: Callable[[], float],
        deliver: Callable[[Submit, StatefulError | None], None],
        adopt: Callable[[_Session, bool], None],
    ) -> None:
        assert config.state is not None
        self._backing = backing
        self._calls = StoreCalls(backing.access, backing.results) if backing else None
        self._commit_every = config.state.commit_every
        self._num_recent = config.frontend.max_sequence_job_queue_size + 2  # more are not in flight
        self._table = table
        self._pool = pool
        self._clock = clock
        self._utc = utc
        self._deliver = deliver
        self._adopt = adopt
        self._wanted: dict[str, list[Submit]] = {}  # what waits for a sequence to be here, or gone
        self._known: dict[str, LogPosition] = {}  # of ids that were looked for and have no sequence
        self._doubtful: LRU[str, Value] = LRU(config.frontend.max_sessions)  # perhaps written

    @property
    def num_failed(self) -> int:
        """Writes that failed."""
        return self._calls.num_failed if self._calls else 0

    def holds(self, message: Submit) -> bool:
        """Whether the request has to wait: its sequence is not here and is looked for, or is on its way here or away."""
        if self._calls is None:
            return False
        for session_id in message.session_ids:
            is_here = self._is_here(session_id)
            if session_id in self._wanted:
                self._wanted[session_id].append(message)
                return True
            if is_here:
                continue
            if session_id in self._known:
                return False  # it is nowhere
            if session_id in (".", ".."):
                raise InvalidRequest(
                    "a sequence that is stored cannot be called . or ..", field="session_id"
                )
            self._wanted[session_id] = [message]
            doubtful = self._doubtful.pop(session_id, None)
            job = partial(find, *self._at(session_id), self._num_recent, doubtful)
            self._calls.run(job, partial(self._found, session_id))
            return True
        return False

    def answered(self, message: Submit) -> Answered | None:
        """How a request that an engine had before (`is_retry`) was answered, if it was."""
        if self._calls is None:
            return None
        for session_id in message.session_ids[-1:]:
            here = session_id in self._table
            place = self._table.get(session_id).state.place if here else self._known.get(session_id)
            for one in place.recent if place else ():
                if message.request_id in one.request_ids:
                    return one
        return None

    def place(self, session_id: str) -> LogPosition | None:
        """Where a sequence that begins now is written; None where there is no store."""
        if self._calls is None:
            return None
        return self._known.pop(session_id, None) or LogPosition(deque(maxlen=self._num_recent))

    def write(
        self, session: _Session, answered: Answered, then: Done, step: InputRow | None = None
    ) -> None:
        """Writes what a sequence that has a place is now, behind a step or, without one, from the beginning; `then` gets the
        reason if it could not be, and the sequence must not go on here."""
        place, calls = session.state.place, self._calls
        assert calls is not None
        assert place is not None
        entry, states = self._entry(session, place, answered, step)

        def done(outcome: Any) -> None:
            reason = calls.reason(outcome, "sequence", "step")
            place.is_lost = reason is not None
            if reason is None and isinstance(outcome, Exception):
                place.position += 1
                place.has_hole = True
            if reason is not None and place.doubtful is not None:
                self._doubtful[session.session_id] = place.doubtful
            if reason is None:
                place.recent.append(answered)
            then(reason)

        job = partial(append, *self._at(session.session_id), place, entry, states)
        calls.in_order(place.line, job, done)

    def removed(
        self,
        session: _Session,
        then: Callable[[], None] = lambda: None,
        *,
        expired: bool = False,
    ) -> None:
        """The sequence is over; requests for its id wait until it is removed from the store, or that has failed.

        One that has `expired` here stays there if it goes on elsewhere.
        """
        session_id, place = session.session_id, session.state.place
        if self._calls is None or place is None:
            then()
            return

        def done(outcome: Any) -> None:
            if isinstance(outcome, Exception):
                logger.warning("a sequence could not be removed from the store: %s", outcome)
            then()
            self.release(session_id)

        self._wanted[session_id] = []
        self._calls.in_order(
            place.line, partial(remove, *self._at(session_id), place if expired else None), done
        )

    def release(self, session_id: str, error: StatefulError | None = None) -> None:
        """What waits for a sequence gets its turn, or is refused."""
        for message in self._wanted.pop(session_id, ()):
            self._deliver(message, error)
        self._known.pop(session_id, None)

    def behind(self, session: _Session, then: Callable[[], None]) -> bool:
        """Calls `then` when what is being written of a sequence has been; False if nothing is."""
        place = session.state.place
        if self._calls is None or place is None or not place.line.is_busy:
            return False
        self._calls.in_order(place.line, lambda: None, lambda outcome: then())
        return True

    def _is_here(self, session_id: str) -> bool:
        with contextlib.suppress(SessionError):
            self._table.get(session_id)  # which ends it if its time is up
        return session_id in self._table

    def _at(self, session_id: str) -> tuple[Store, str]:
        assert self._backing is not None
        return self._backing.access.store, f"{self._backing.scope}/{session_id}"

    def _entry(
        self, session: _Session, place: LogPosition, answered: Answered, step: InputRow | None
    ) -> tuple[Entry, Sequence[Tensor] | None]:
        """What is written, and the states if they have to be."""
        state, now = session.state, self._utc()
        start, end = (step.start, step.end) if step else (False, False)
        is_behind = place.has_hole or place.num_since >= self._commit_every
        # A beginning stands alone without states too: it can be run again.
        is_due = step is None or self._commit_every == 1 or (is_behind and not start)
        commits = is_due and state.num_steps > 0 and not end
        keeps_inputs = step is not None and not commits and not end
        entry = Entry(
            number=state.num_steps,
            answered=answered,
            opened_at=now + session.opened_at - self._clock(),
            expires_at=now + session.expires_at - self._clock(),
            at=now,
            writer=_WRITER,
            start=start,
            end=end,
            inputs=tuple(step.inputs) if step and keeps_inputs else (),
            shapes=tuple(step.shapes) if step and keeps_inputs else (),
            lengths=tuple(state.lengths),
            metadata=dict(session.metadata),
        )
        if commits or entry.stands_alone:
            entry = structs.replace(entry, earlier=tuple(place.recent))
            place.num_since = 0
        place.num_since += 1
        return entry, state.copied() if commits else None

    def _found(self, session_id: str, outcome: Any) -> None:
        try:
            if isinstance(outcome, StoreError):
                logger.error("a sequence could not be read from the store: %s", outcome)
                raise StoreFailed("the store of sequences does not answer", retry_after_s=1.0)
            if isinstance(outcome, Exception):
                raise defect(outcome, "reading a sequence from the store")
            session = self._restored(session_id, outcome)
            if session is not None:
                self._adopt(session, any(m.is_retry for m in self._wanted[session_id]))
            else:
                self._known[session_id] = outcome.place
        except SessionExpired:  # it was forgotten to be removed: there is none
            session, self._known[session_id] = None, outcome.place
        except StatefulError as error:
            self.release(session_id, error)
            return
        if session is None or not session.work:
            self.release(session_id)

    def _restored(self, session_id: str, found: Found) -> _Session | None:
        """A sequence from what was found of it, if it goes on."""
        if not found.entries or found.entries[-1].end:
            return None
        first, last, now = found.entries[0], found.entries[-1], self._utc()
        state = SequenceState(self._pool)
        steps = found.entries[1:] if first.states or not first.number else found.entries
        if first.states is not None:
            state.restore(found.states, first.number, first.lengths)
            state.last_answer = first.answered.repeatable
        state.place = found.place
        session = Session(
            session_id=session_id,
            state=state,
            opened_at=self._clock() + first.opened_at - now,
            expires_at=self._clock() + first.expires_at - now,
            idle_s=0.0,
            last_used=self._clock() + last.at - now,
            metadata=first.metadata,
        )
        for one in steps:
            step = Step(session_id=session_id, start=one.start)
            row = InputRow(one.inputs, one.shapes)
            session.work.append(PendingStep(session, step, row, recorded=one.answered))
        return session
