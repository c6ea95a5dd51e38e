"""The sequences of one engine: the one that a request means, and room for another."""

from __future__ import annotations

from collections import OrderedDict

from ts_stateful.config.schema import StateConfig
from ts_stateful.engine.core import EngineCore
from ts_stateful.engine.waiting import Missing, PendingRequest
from ts_stateful.protocol.errors import (
    EngineUnavailable,
    InvalidRequest,
    OutOfMemory,
    SessionClosed,
    SessionExpired,
    SessionNotFound,
    TurnGap,
)
from ts_stateful.protocol.requests import Fork, Step
from ts_stateful.recurrent.persistence import NoStepPersistence
from ts_stateful.recurrent.sequence import SequenceState
from ts_stateful.recurrent.slots import SlotPool
from ts_stateful.recurrent.step_records import Answered
from ts_stateful.sessions.session import Session

__all__ = ["EndedAnswers", "Sequences", "gap"]

_Session = Session[SequenceState]
_START = "; send `start`: true to begin a new sequence"
_ENDED_BYTES = 2**24  # of answers to END; those that are older are forgotten
_ANSWER_BYTES = 2**10  # that an answer takes beside its document


class Sequences:
    """Finds and begins sequences in a table."""

    def __init__(
        self,
        core: EngineCore[SequenceState],
        settings: StateConfig,
        pool: SlotPool,
        persistence: NoStepPersistence,
    ) -> None:
        self._settings = settings
        self._quotas = core.quotas
        self._table = core.table
        self.pool = pool
        self._persistence = persistence
        self.ended = EndedAnswers()

    def of_step(self, request: PendingRequest, command: Step) -> tuple[_Session, bool]:
        """Return the sequence of a step, and True if the step begins it."""
        session_id = command.session_id
        assert session_id is not None
        try:
            return self._table.get(session_id), False
        except SessionClosed:
            pass  # it was ended: the next step begins a new sequence
        except SessionExpired as error:
            if not command.start:
                raise SessionExpired(error.message + _START) from None
        except SessionNotFound as error:
            if not (command.start or request.message.creates_session):
                raise SessionNotFound(error.message + _START, field=error.field) from None
        if command.turn not in (None, 1):
            raise gap(command.turn, 1)
        if not request.message.may_begin:
            raise EngineUnavailable("the server drains, and begins no sequence", retry_after_s=1.0)
        self._quotas.check_turn(request.message, self._table)
        return self.begin(session_id, request.missing.get(session_id)), True

    def last_answer(self, request: PendingRequest) -> Answered | None:
        """Return the answer to the END of the sequence that had this id last, if it is known and there is none now."""
        session_id = request.message.command.session_id or ""
        if session_id in self._table:
            return None
        missing = request.missing.get(session_id)
        if missing is None:
            return self.ended.get(session_id)
        recent = missing.position.recent if missing.position else ()
        return recent[-1].repeatable if recent and recent[-1].closed else None

    def begin(
        self,
        session_id: str,
        missing: Missing | None = None,
        *,
        ttl_s: float | None = None,
        metadata: dict[str, object] | None = None,
        spared: _Session | None = None,
    ) -> _Session:
        """Open a sequence without a step; `missing` is the result of the search for its id. `spared` is not parked for it.

        Raises:
            StatefulError: there is no room for it, or there is one of this id.
        """
        self.check_memory()
        session = self._table.open(
            session_id, SequenceState(self.pool), ttl_s=ttl_s, metadata=metadata, spared=spared
        )
        self.ended.forget(session_id)
        session.state.log_position = self._persistence.new_position(missing)
        return session

    def fork(self, request: PendingRequest, source: _Session, command: Fork) -> _Session:
        """Open a sequence that stands where another one does; raise as `begin` does, and `InvalidRequest`."""
        if command.at_turn not in (None, source.state.num_steps):
            raise InvalidRequest("recurrent states cannot be cut back", field="at_turn")
        name = command.new_session_id
        assert name is not None
        session = self.begin(
            name,
            request.missing.get(name),
            ttl_s=command.ttl_s,
            metadata=dict(source.metadata if command.metadata is None else command.metadata),
            spared=source,
        )
        position, session.state = session.state.log_position, source.state.fork()
        session.state.log_position = position
        return session

    def check_memory(self) -> None:
        """Raise `OutOfMemory` if there is no room for the states of another sequence."""
        host_bytes = self._settings.host_cache_bytes
        if host_bytes is not None:
            most = self.pool.max_slots + host_bytes // max(1, self.pool.slot_bytes)
            if len(self._table) >= most:
                raise OutOfMemory(
                    f"{len(self._table)} sequences fill deviceCacheBytes and hostCacheBytes; close one"
                )


class EndedAnswers:
    """The answers to the numbered last steps of sequences that ended here, by id; `most_bytes` of them."""

    def __init__(self, most_bytes: int = _ENDED_BYTES) -> None:
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._answers: OrderedDict[str, Answered] = OrderedDict()

    def add(self, session_id: str, answered: Answered) -> None:
        """Remember the answer to an END, if its step can be recognised."""
        self.forget(session_id)
        if not answered.identity or answered.repeatable is None:
            return
        self._answers[session_id] = answered
        self._num_bytes += _size(answered)
        while self._num_bytes > self._most_bytes:
            self.forget(next(iter(self._answers)))

    def get(self, session_id: str) -> Answered | None:
        """Return the answer of the sequence that had this id last, if it is known."""
        return self._answers.get(session_id)

    def forget(self, session_id: str) -> None:
        """Forget an id that is in use again."""
        answered = self._answers.pop(session_id, None)
        if answered is not None:
            self._num_bytes -= _size(answered)


def _size(answered: Answered) -> int:
    return len(answered.body) + _ANSWER_BYTES


def gap(asked: int | None, number: int) -> TurnGap:
    """Return the error for a step whose number is not the next."""
    return TurnGap(f"turn {asked} was asked for, but turn {number} is next", field="turn")
