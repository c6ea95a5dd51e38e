"""Sequences in a store: steps are written before they are answered, and no pass waits for that."""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lru import LRU
from msgspec import structs
from torch import Tensor

from ts_stateful.engine.core import EngineCore
from ts_stateful.engine.waiting import Missing, PendingRequest
from ts_stateful.protocol.errors import InvalidRequest, StatefulError
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
from ts_stateful.store.base import Store

__all__ = ["StepPersistence"]

logger = logging.getLogger(__name__)

Done = Callable[[StatefulError | None], None]
_Session = Session[SequenceState]
_WRITER = uuid.uuid4().hex  # of this process


class StepPersistence:
    """The sequences of one engine in its store, below `scope`; all methods are for the engine's thread.

    Without a store everything counts as written at once, and nothing is found.
    """

    def __init__(self, core: EngineCore[SequenceState], pool: SlotPool, scope: str) -> None:
        settings, frontend = core.config.state, core.config.frontend
        assert settings is not None
        self._core = core
        self._calls = core.store
        self._clock = core.clock
        self._scope = scope
        self._commit_every = settings.commit_every
        self._num_recent = frontend.max_sequence_job_queue_size + 2  # more are not in flight
        self._pool = pool
        self._doubtful: LRU[str, Value] = LRU(frontend.max_sessions)  # perhaps written

    def search(self, session_id: str) -> Callable[[], Found]:
        """See `ModelKind`.

        Raises:
            InvalidRequest: no stored sequence can have this id.
        """
        if session_id in (".", ".."):
            raise InvalidRequest(
                "a sequence that is stored cannot be called . or ..", field="session_id"
            )
        doubtful = self._doubtful.pop(session_id, None)
        return partial(find, *self._at(session_id), self._num_recent, doubtful)

    def answered(self, request: PendingRequest) -> Answered | None:
        """Return the answer that an engine that died gave to this request, if it did."""
        message = request.message
        if self._calls is None or not message.is_retry:
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
        """Return where a sequence that begins now is written; None if there is no store."""
        if self._calls is None:
            return None
        found = missing.position if missing else None
        return found or LogPosition(deque(maxlen=self._num_recent))

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
            self._core.waiting.release(session_id)

        self._core.waiting.block(session_id)
        self._calls.in_order(
            place.line, partial(remove, *self._at(session_id), place if expired else None), done
        )

    def when_written(self, session: _Session, then: Callable[[], None]) -> bool:
        """Call `then` after the writes of a sequence that are under way; return False if there are none."""
        place = session.state.place
        if self._calls is None or place is None or not place.line.is_busy:
            return False
        self._calls.in_order(place.line, lambda: None, lambda outcome: then())
        return True

    def _at(self, session_id: str) -> tuple[Store, str]:
        assert self._calls is not None
        return self._calls.store, f"{self._scope}/{session_id}"

    def _entry(
        self, session: _Session, place: LogPosition, answered: Answered, step: InputRow | None
    ) -> tuple[Entry, Sequence[Tensor] | None]:
        """What is written, and the states if they have to be."""
        state = session.state
        start, end = (step.start, step.end) if step else (False, False)
        is_behind = place.has_hole or place.num_since >= self._commit_every
        # A beginning stands alone without states too: it can be run again.
        is_due = step is None or self._commit_every == 1 or (is_behind and not start)
        commits = is_due and state.num_steps > 0 and not end
        keeps_inputs = step is not None and not commits and not end
        entry = Entry(
            number=state.num_steps,
            answered=answered,
            opened_at=self._clock.unix_of(session.opened_at),
            expires_at=self._clock.unix_of(session.expires_at),
            at=self._clock.unix(),
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

    def restored(self, session_id: str, found: Found) -> _Session | None:
        """Return the sequence that was found, with the steps to replay as its work; None if it ended."""
        if not found.entries or found.entries[-1].end:
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
