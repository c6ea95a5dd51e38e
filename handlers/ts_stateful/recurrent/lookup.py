"""The sequences of one engine: which one a request means, and whether there is room for another.

Owns where a sequence begins. Knows nothing of the order of its steps.
"""

from __future__ import annotations

from ts_stateful.config.schema import StateConfig
from ts_stateful.protocol.errors import (
    InvalidRequest,
    OutOfMemory,
    SessionClosed,
    SessionExpired,
    SessionNotFound,
    TurnGap,
)
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Fork, Step
from ts_stateful.recurrent.persistence import StepPersistence
from ts_stateful.recurrent.sequence import SequenceState
from ts_stateful.recurrent.slots import SlotPool
from ts_stateful.sessions.session import Session
from ts_stateful.sessions.table import SessionTable

__all__ = ["Sequences", "gap"]

_Session = Session[SequenceState]
_AGAIN = "; send `start`: true to begin anew"


class Sequences:
    """Finds and begins sequences in a table."""

    def __init__(
        self,
        settings: StateConfig,
        table: SessionTable[SequenceState],
        pool: SlotPool,
        persistence: StepPersistence,
    ) -> None:
        self._settings = settings
        self._table = table
        self._pool = pool
        self._persistence = persistence

    def get(self, session_id: str | None) -> _Session:
        """The open sequence of that id; raises as `SessionTable.get` does."""
        if session_id is None:
            raise InvalidRequest("name the session, in the header or here", field="session_id")
        return self._table.get(session_id)

    def of_step(self, message: Submit, command: Step) -> tuple[_Session, bool]:
        """The session of a step, and whether it was opened just now."""
        session_id = command.session_id
        try:
            return self.get(session_id), False
        except SessionClosed:
            pass  # its end was said: whatever comes is a new beginning
        except SessionExpired as error:
            if not command.start:
                raise SessionExpired(error.message + _AGAIN) from None
        except SessionNotFound as error:
            if not (command.start or message.creates_session):
                raise SessionNotFound(error.message + _AGAIN, field=error.field) from None
        if command.turn not in (None, 1):
            raise gap(command.turn, 1)
        assert session_id is not None
        return self.begin(session_id), True

    def begin(
        self, session_id: str, ttl_s: float | None = None, metadata: dict[str, object] | None = None
    ) -> _Session:
        """A sequence without a step.

        Raises:
            StatefulError: there is no room for it, or there is one of this id.
        """
        self.check_memory()
        session = self._table.open(
            session_id, SequenceState(self._pool), ttl_s=ttl_s, metadata=metadata
        )
        session.state.place = self._persistence.place(session_id)
        return session

    def fork(self, source: _Session, command: Fork) -> _Session:
        """A sequence that stands where another one does now; raises as `begin` does, and `InvalidRequest`."""
        if command.at_turn not in (None, source.state.num_steps):
            raise InvalidRequest("recurrent states cannot be cut back", field="at_turn")
        assert command.new_session_id is not None
        metadata = dict(source.metadata if command.metadata is None else command.metadata)
        session = self.begin(command.new_session_id, command.ttl_s, metadata)
        place, session.state = session.state.place, source.state.fork()
        session.state.place = place
        return session

    def check_memory(self) -> None:
        """Raises `OutOfMemory` if the states of another sequence would have no place."""
        host_bytes = self._settings.host_cache_bytes
        if host_bytes is not None:
            most = self._pool.max_slots + host_bytes // max(1, self._pool.slot_bytes)
            if len(self._table) >= most:
                raise OutOfMemory(
                    "neither deviceCacheBytes nor hostCacheBytes has room for another sequence"
                )


def gap(asked: int | None, number: int) -> TurnGap:
    """The refusal of a step by its number."""
    return TurnGap(f"turn {asked} was asked for, but turn {number} is next", field="turn")
