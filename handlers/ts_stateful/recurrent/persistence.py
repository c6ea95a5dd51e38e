"""Sequences in a store: steps are written before they are answered, and no pass waits for that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from lru import LRU
from msgspec import UNSET, UnsetType, structs
from torch import Tensor

from ts_stateful.engine.core import EngineCore
from ts_stateful.engine.no_store import NoStore
from ts_stateful.engine.waiting import Missing, PendingRequest
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.requests import Step
from ts_stateful.recurrent.batch import InputRow
from ts_stateful.recurrent.sequence import SequenceState
from ts_stateful.recurrent.slots import SlotPool
from ts_stateful.recurrent.step import PendingStep
from ts_stateful.recurrent.step_records import (
    Answered,
    FoundSequence,
    SequencePosition,
    SequenceRecords,
    StepEntry,
)
from ts_stateful.session_log.journal import Done, Journal
from ts_stateful.session_log.log import Known
from ts_stateful.session_log.ownership import Doubtful
from ts_stateful.sessions.session import Session
from ts_stateful.store.ordered_calls import StoreCalls

__all__ = ["NoStepPersistence", "StepPersistence"]

logger = logging.getLogger(__name__)

_Session = Session[SequenceState]


class NoStepPersistence(NoStore[SequenceState]):
    """No store: sequences end with their engine."""

    def answered(self, request: PendingRequest) -> Answered | None:
        """Return the answer that an engine that died gave to this request, if it did."""
        return None

    def new_position(self, missing: Missing | None) -> SequencePosition | None:
        """Return the log position of a sequence that begins now; None if there is no store."""
        return None

    def write(
        self, session: _Session, answered: Answered, then: Done, step: InputRow | None = None
    ) -> None:
        """Write a sequence that has a log position, after a step or, without one, as a whole.

        `then` gets the error if that failed; the sequence must then not go on here.
        """
        then(None)

    def when_written(self, session: _Session, then: Callable[[], None]) -> bool:
        """Call `then` after the writes of a sequence that are under way; return False if there are none."""
        return False

    def restored(self, session_id: str, found: FoundSequence) -> _Session | None:
        """Return the sequence that was found, with the steps to replay as its work; None if it ended."""
        return None


class StepPersistence(NoStepPersistence):
    """The sequences of one engine in its store, below `scope`; all methods are for the engine's thread."""

    def __init__(
        self, core: EngineCore[SequenceState], calls: StoreCalls, pool: SlotPool, scope: str
    ) -> None:
        settings, frontend = core.config.state, core.config.frontend
        assert settings is not None
        self._core = core
        self._clock = core.clock
        num_recent = frontend.max_sequence_job_queue_size + 2  # more are not in flight
        self._records = SequenceRecords(calls.store, scope, num_recent, frontend.idle_s, core.clock)
        self._journal = Journal(calls, self._records.logs, whole="sequence", part="step")
        self._commit_every = settings.commit_every
        self._pool = pool
        self._doubtful: LRU[str, Doubtful] = LRU(frontend.max_sessions)
        # Logs of closed sequences that the store failed to remove; their ids may be used again meanwhile.
        self._unremoved: LRU[str, Known] = LRU(frontend.max_sessions)

    def search(self, session_id: str, *, in_use: bool) -> Callable[[], FoundSequence]:
        """See `NoStore`."""
        doubtful = self._doubtful.get(session_id)
        return partial(self._records.find, session_id, doubtful, in_use=in_use)

    def look_after(self, session: _Session) -> Callable[[], bool] | None:
        """See `NoStore`."""
        position = session.state.log_position
        assert position is not None
        return self._journal.look_after(session.session_id, position)

    def answered(self, request: PendingRequest) -> Answered | None:
        """See `NoStepPersistence`."""
        message = request.message
        if not message.is_retry:
            return None
        for session_id in message.session_ids[-1:]:
            if session_id in self._core.table:
                position = self._core.table.get(session_id).state.log_position
            else:
                missing = request.missing.get(session_id)
                position = missing.position if missing else None
            for one in position.recent if position else ():
                if message.request_id in one.request_ids:
                    return one
        return None

    def new_position(self, missing: Missing | None) -> SequencePosition | None:
        """See `NoStepPersistence`."""
        found = missing.position if missing else None
        return found or self._records.new_position()

    def write(
        self, session: _Session, answered: Answered, then: Done, step: InputRow | None = None
    ) -> None:
        """See `NoStepPersistence`."""
        session_id, position = session.session_id, session.state.log_position
        assert position is not None
        write = self._records.step(session_id, *self._entry(session, position, answered, step))

        def written(error: StatefulError | None) -> None:
            if error is None:
                position.recent.append(answered)
            else:  # states cannot be rolled back: the sequence is read from the store again
                position.is_lost = True
                if position.doubtful is not None:
                    self._doubtful[session_id] = position.doubtful
            then(error)

        self._journal.write(session_id, position, write, written)

    def ended(
        self,
        session: _Session,
        reason: Literal["closed", "expired"],
        then: Callable[[Any], None] = lambda outcome: None,
    ) -> None:
        """See `NoStore`. Requests for its id wait meanwhile."""
        position = session.state.log_position
        assert position is not None
        self._end(session.session_id, position, reason, then)

    def erase(self, session_id: str, then: Callable[[Any], None]) -> None:
        """See `NoStore`."""
        self._doubtful.pop(session_id, None)
        self._end(session_id, self._records.new_position(), "closed", then)

    def _end(
        self,
        session_id: str,
        position: SequencePosition,
        reason: Literal["closed", "expired"],
        then: Callable[[Any], None],
    ) -> None:
        def done(outcome: Any) -> None:
            if isinstance(outcome, Exception):
                logger.warning("a sequence could not be removed from the store: %s", outcome)
                if reason == "closed":
                    self._unremoved[session_id] = position.known
            then(outcome)
            self._core.waiting.release(session_id)

        self._core.waiting.block(session_id)
        self._journal.end(session_id, position, self._records.closed(reason), done)

    def when_written(self, session: _Session, then: Callable[[], None]) -> bool:
        """See `NoStepPersistence`."""
        position = session.state.log_position
        return position is not None and self._journal.when_written(position, then)

    def can_park(self, session: _Session) -> bool:
        """See `Parking`."""
        position = session.state.log_position
        return position is not None and position.can_leave

    def _entry(
        self,
        session: _Session,
        position: SequencePosition,
        answered: Answered,
        step: InputRow | None,
    ) -> tuple[StepEntry, Sequence[Tensor] | None]:
        """Return the entry to write, and the states if they are due."""
        state = session.state
        start, end = (step.start, step.end) if step else (False, False)
        # A beginning stands alone without states: it can be run again.
        is_due = step is None or self._commit_every == 1
        is_due |= position.num_since >= self._commit_every and not start
        commits = is_due and state.num_steps > 0 and not end
        keeps_inputs = step is not None and not commits and not end
        entry = StepEntry(
            number=state.num_steps,
            answered=answered,
            opened_at=self._clock.unix_of(session.opened_at),
            expires_at=self._clock.unix_of(session.expires_at),
            at=self._clock.unix(),
            writer=self._records.writer,
            start=start,
            end=end,
            inputs=tuple(step.inputs) if step and keeps_inputs else (),
            shapes=tuple(step.shapes) if step and keeps_inputs else (),
            lengths=tuple(state.lengths),
            metadata=dict(session.metadata),
            copied=UNSET if step else state.last_answer,
        )
        if commits or entry.stands_alone:
            entry = structs.replace(entry, earlier=tuple(position.recent))
            position.num_since = 0
        position.num_since += 1
        return entry, state.copied() if commits else None

    def restored(self, session_id: str, found: FoundSequence) -> _Session | None:
        """See `NoStepPersistence`."""
        self._doubtful.pop(session_id, None)  # only now: a search that failed took nothing back
        if not found.entries or self._unremoved.get(session_id) == found.position.known:
            return None
        first, last = found.entries[0], found.entries[-1]
        state = SequenceState(self._pool)
        steps = found.entries[1:] if first.states or not first.number else found.entries
        if first.states is not None:
            state.restore(found.states, first.number, first.lengths)
            if isinstance(first.copied, UnsetType):
                state.last_answer = first.answered.repeatable
            else:
                state.last_answer = first.copied
        state.log_position = found.position
        session = Session(
            session_id=session_id,
            state=state,
            opened_at=self._clock.monotonic_of(first.opened_at),
            expires_at=self._clock.monotonic_of(first.expires_at),
            idle_s=0.0,
            last_used=self._clock.monotonic_of(last.at),
            metadata=first.metadata,
        )
        for one in steps:
            step = Step(session_id=session_id, start=one.start)
            row = InputRow(one.inputs, one.shapes)
            session.work.append(PendingStep(session, step, row, recorded=one.answered))
        return session
