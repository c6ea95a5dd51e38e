"""The sessions of an engine of a language model in its store, or without one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from ts_stateful.engine.core import EngineCore
from ts_stateful.engine.no_store import NoStore
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.history import Turn
from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.encoders.beside import VisionBeside
from ts_stateful.language.network.load import Model
from ts_stateful.language.persistence.entries import LogEntry
from ts_stateful.language.persistence.kv_offload import KvOffload
from ts_stateful.language.persistence.session_records import SessionRecords
from ts_stateful.session_log.journal import Done, Journal, LogPosition
from ts_stateful.sessions.session import Session

__all__ = ["NoPersistence", "TurnPersistence", "make_persistence"]

logger = logging.getLogger(__name__)


class NoPersistence(NoStore[Context]):
    """No store: everything counts as written at once."""

    offload: KvOffload | None = None

    def is_saved(self, session: Session[Context]) -> bool | None:
        """Return True if the store has all that was committed, and enough to go on; None if there is no store."""
        return None

    def committed(self, sequence: Sequence, turn: Turn | None, then: Done) -> None:
        """Write a turn or, if it is None, the opening of a session; `then` gets the error if it must be undone."""
        then(None)

    def rewound(self, session: Session[Context], to_turn: int, then: Done) -> None:
        """Write that a session goes back to what it was after a turn."""
        then(None)

    def discarded(self, session: Session[Context], turn: int, to_turn: int, then: Done) -> None:
        """Write that a turn lost its note, and that the session goes back to what it was after `to_turn`."""
        then(None)

    def forked(self, session: Session[Context], then: Done) -> None:
        """Write a session that was made from another one."""
        then(None)

    def recall(self, session: Session[Context], then: Callable[[Session[Context]], None]) -> None:
        """Begin to read KV states of a session that has a request; they are `incoming` until `then`."""

    def became_idle(self) -> None:
        """Note that a session became idle, and may have to leave the device some time."""

    def lend(self, source: Session[Context], fork: Session[Context]) -> None:
        """Let a fork without KV states read those of its source."""


class TurnPersistence(NoPersistence):
    """A store, through `journal` and `records`; `offload` adds KV states."""

    def __init__(
        self, journal: Journal[LogEntry], records: SessionRecords, offload: KvOffload | None = None
    ) -> None:
        self.offload = offload
        self._journal = journal
        self._records = records

    def is_saved(self, session: Session[Context]) -> bool | None:
        """See `NoPersistence`."""
        return session.state.log_position.is_saved and self._records.keeps(session)

    def committed(self, sequence: Sequence, turn: Turn | None, then: Done) -> None:
        """See `NoPersistence`."""
        if sequence.ephemeral:
            then(None)
            return
        session = sequence.session
        if turn is None:
            write = self._records.opening(session, sequence.images)
        else:
            write = self._records.turn(
                session,
                turn,
                sequence.images,
                creates_session=sequence.creates_session,
                past=sequence.past,
            )
        self._journal.write(session.session_id, session.state.log_position, write, then)

    def rewound(self, session: Session[Context], to_turn: int, then: Done) -> None:
        """See `NoPersistence`."""
        write = self._records.rewound(session, to_turn)
        self._journal.write(session.session_id, session.state.log_position, write, then)

    def discarded(self, session: Session[Context], turn: int, to_turn: int, then: Done) -> None:
        """See `NoPersistence`."""
        write = self._records.discarded(session, turn, to_turn)
        self._journal.write(session.session_id, session.state.log_position, write, then)

    def forked(self, session: Session[Context], then: Done) -> None:
        """See `NoPersistence`."""
        write = self._records.whole(session)
        self._journal.write(session.session_id, session.state.log_position, write, then)

    def ended(
        self,
        session: Session[Context],
        reason: Literal["closed", "expired"],
        then: Callable[[Any], None] = lambda outcome: None,
    ) -> None:
        """See `NoStore`."""

        def removed(outcome: Any) -> None:
            if isinstance(outcome, Exception):
                logger.warning(
                    "an ended session could not be removed from the store yet: %s", outcome
                )
            then(outcome)

        position, closed = session.state.log_position, self._records.closed(reason, session.origin)
        self._journal.end(session.session_id, position, closed, removed)

    def erase(self, session_id: str, then: Callable[[Any], None]) -> None:
        """See `NoStore`."""
        self._journal.end(session_id, LogPosition(), self._records.closed("closed"), then)

    def look_after(self, session: Session[Context]) -> Callable[[], bool] | None:
        """See `NoStore`."""
        return self._journal.look_after(session.session_id, session.state.log_position)

    def search(self, session_id: str, *, in_use: bool) -> Callable[[], Any]:
        """See `NoStore`."""
        return partial(self._records.load, session_id, in_use=in_use)

    def recall(self, session: Session[Context], then: Callable[[Session[Context]], None]) -> None:
        """See `NoPersistence`."""
        if self.offload is not None:
            self.offload.recall(session, then)

    def became_idle(self) -> None:
        """See `NoPersistence`."""
        if self.offload is not None:
            self.offload.tidy()

    def can_park(self, session: Session[Context]) -> bool:
        """See `Parking`."""
        context = session.state
        return (
            context.log_position.can_leave and self._records.keeps(session) and not context.incoming
        )

    def parked(self, session: Session[Context]) -> None:
        """See `Parking`. Its KV states are computed again, because only those of sessions in the table are counted."""
        if self.offload is not None:
            self.offload.remove(session)

    def lend(self, source: Session[Context], fork: Session[Context]) -> None:
        """See `NoPersistence`."""
        if self.offload is not None:
            self.offload.lend(source, fork)


def make_persistence(core: EngineCore[Context], model: Model) -> NoPersistence:
    """Return the persistence that the engine's store and configuration ask for."""
    if core.store is None:
        return NoPersistence()
    records = SessionRecords(model, core.store.store, core.shared, core.config, core.clock)
    journal = Journal(core.store, records.logs, whole="session", part="turn")
    budget_bytes = core.config.handler.store.spill_bytes
    # States that depend on a whole prompt, or on all images of a session, are not those of its first tokens.
    depends = model.forward.layout.per_prompt or isinstance(model.encoder, VisionBeside)
    if not budget_bytes or depends:
        return TurnPersistence(journal, records)
    offload = KvOffload(model, core.table, core.store, records, budget_bytes)
    return TurnPersistence(journal, records, offload)
