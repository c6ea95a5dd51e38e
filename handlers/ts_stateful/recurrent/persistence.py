"""Sequences in a store: steps are written before they are answered, and no pass waits for that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from lru import LRU
from msgspec import structs
from torch import Tensor

from ts_stateful.engine.core import EngineCore
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
    LogPosition,
    SequenceLogs,
    StepEntry,
)
from ts_stateful.sessions.session import Session
from ts_stateful.store.ordered_calls import StoreCalls

__all__ = ["NoStepPersistence", "StepPersistence"]

logger = logging.getLogger(__name__)

Done = Callable[[StatefulError | None], None]
_Session = Session[SequenceState]


class NoStepPersistence:
    """No store: sequences end with their engine, and nothing is found."""

    def search(self, session_id: str, *, in_use: bool) -> Callable[[], FoundSequence]:
        """See `ModelKind`."""
        raise AssertionError("there is no store to search")

    def answered(self, request: PendingRequest) -> Answered | None:
        """Return the answer that an engine that died gave to this request, if it did."""
        return None

    def place(self, missing: Missing | None) -> LogPosition | None:
        """Return where a sequence that begins now is written; None if there is no store."""
        return None

    def write(
        self, session: _Session, answered: Answered, then: Done, step: InputRow | None = None
    ) -> None:
        """Write a sequence that has a place, after a step or, without one, as a whole.

        `then` gets the error if that failed; the sequence must then not go on here.
        """
        then(None)

    def removed(
        self, session: _Session, then: Callable[[], None] = lambda: None, *, expired: bool = False
    ) -> None:
        """Remove a sequence that ended from the store; requests for its id wait until that is done or has failed.

        One that `expired` here stays in the store if another engine uses it.
        """
        then()

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
        self._calls = calls
        self._clock = core.clock
        num_recent = frontend.max_sequence_job_queue_size + 2  # more are not in flight
        self._logs = SequenceLogs(calls.store, scope, num_recent, frontend.idle_s, core.clock)
        self._commit_every = settings.commit_every
        self._pool = pool
        # Positions and entries that the store may have all the same.
        self._doubtful: LRU[str, tuple[int, StepEntry]] = LRU(frontend.max_sessions)

    def search(self, session_id: str, *, in_use: bool) -> Callable[[], FoundSequence]:
        """See `ModelKind`."""
        doubtful = self._doubtful.pop(session_id, None)
        return partial(self._logs.find, session_id, doubtful, in_use=in_use)

    def answered(self, request: PendingRequest) -> Answered | None:
        """See `NoStepPersistence`."""
        message = request.message
        if not message.is_retry:
            return None
        for session_id in message.session_ids[-1:]:
            if session_id in self._core.table:
                place = self._core.table.get(session_id).state.place
            else:
                missing = request.missing.get(session_id)
                place = missing.position if missing else None
            for one in place.recent if place else ():
                if message.request_id in one.request_ids:
                    return one
        return None

    def place(self, missing: Missing | None) -> LogPosition | None:
        """See `NoStepPersistence`."""
        found = missing.position if missing else None
        return found or self._logs.new_place()

    def write(
        self, session: _Session, answered: Answered, then: Done, step: InputRow | None = None
    ) -> None:
        """See `NoStepPersistence`."""
        place, calls, logs = session.state.place, self._calls, self._logs
        assert place is not None
        entry, states = self._entry(session, place, answered, step)

        def done(outcome: Any) -> None:
            reason = calls.reason(outcome, "sequence", "step")
            place.is_lost = reason is not None
            if reason is None and isinstance(outcome, Exception):
                place.skip()
            if reason is not None and place.doubtful is not None:
                self._doubtful[session.session_id] = place.doubtful
            if reason is None:
                place.recent.append(answered)
            then(reason)

        job = partial(logs.append, session.session_id, place, entry, states)
        calls.in_order(place.line, job, done)

    def removed(
        self,
        session: _Session,
        then: Callable[[], None] = lambda: None,
        *,
        expired: bool = False,
    ) -> None:
        """See `NoStepPersistence`."""
        session_id, place = session.session_id, session.state.place
        assert place is not None

        def done(outcome: Any) -> None:
            if isinstance(outcome, Exception):
                logger.warning("a sequence could not be removed from the store: %s", outcome)
            then()
            self._core.waiting.release(session_id)

        self._core.waiting.block(session_id)
        reason: Literal["closed", "expired"] = "expired" if expired else "closed"
        job = partial(self._logs.remove, session_id, place, reason)
        self._calls.in_order(place.line, job, done)

    def when_written(self, session: _Session, then: Callable[[], None]) -> bool:
        """See `NoStepPersistence`."""
        place = session.state.place
        if place is None or not place.line.is_busy:
            return False
        self._calls.in_order(place.line, lambda: None, lambda outcome: then())
        return True

    def _entry(
        self, session: _Session, place: LogPosition, answered: Answered, step: InputRow | None
    ) -> tuple[StepEntry, Sequence[Tensor] | None]:
        """Return the entry to write, and the states if they are due."""
        state = session.state
        start, end = (step.start, step.end) if step else (False, False)
        is_behind = place.has_hole or place.num_since >= self._commit_every
        # A beginning stands alone without states: it can be run again.
        is_due = step is None or self._commit_every == 1 or (is_behind and not start)
        commits = is_due and state.num_steps > 0 and not end
        keeps_inputs = step is not None and not commits and not end
        entry = StepEntry(
            number=state.num_steps,
            answered=answered,
            opened_at=self._clock.unix_of(session.opened_at),
            expires_at=self._clock.unix_of(session.expires_at),
            at=self._clock.unix(),
            writer=self._logs.writer,
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

    def restored(self, session_id: str, found: FoundSequence) -> _Session | None:
        """See `NoStepPersistence`."""
        if not found.entries:
            return None
        first, last = found.entries[0], found.entries[-1]
        state = SequenceState(self._pool)
        steps = found.entries[1:] if first.states or not first.number else found.entries
        if first.states is not None:
            state.restore(found.states, first.number, first.lengths)
            state.last_answer = first.answered.repeatable
        state.place = found.place
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
