"""What turns and requests ask of the store, whether there is one or not.

Owns the adoption of sessions: requests for one that is not here wait until it has been looked for. Without a store everything
counts as written at once, and nothing is found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.kv.prefix import Prefix
from ts_stateful.language.network.load import Model
from ts_stateful.language.persistence.journal import Done, Journal
from ts_stateful.language.persistence.kv_offload import KvOffload
from ts_stateful.language.persistence.session_records import Recovered, SessionRecords
from ts_stateful.language.vision.encoder import ImageInput
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import StatefulError, StoreFailed
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Prompt
from ts_stateful.sessions.session import Session, Turn
from ts_stateful.sessions.shared import SharedCache
from ts_stateful.sessions.table import SessionTable
from ts_stateful.store.access import StoreAccess
from ts_stateful.store.base import StoreError
from ts_stateful.store.ordered_calls import ResultQueue

__all__ = ["TurnPersistence", "make_persistence"]

logger = logging.getLogger(__name__)

Waiting = Callable[[Submit, StatefulError | None], None]


class TurnPersistence:
    """The store of one engine, through `journal` and `session_records`; None for both: no store. `spill` adds KV states."""

    def __init__(
        self,
        table: SessionTable[Context],
        journal: Journal | None = None,
        session_records: SessionRecords | None = None,
        spill: KvOffload | None = None,
    ) -> None:
        self.spill = spill
        self._table = table
        self._journal = journal
        self._session_records = session_records
        self._wanted: dict[str, list[Submit]] = {}

    @property
    def num_failed(self) -> int:
        """Writes that failed."""
        return self._journal.num_failed if self._journal else 0

    def is_saved(self, session: Session[Context]) -> bool | None:
        """Whether all that was committed is in the store, and enough to go on; None where there is no store."""
        if self._journal is None or self._session_records is None:
            return None
        return self._journal.is_saved(session) and self._session_records.keeps(session)

    def committed(self, sequence: Sequence, turn: Turn | None, then: Done) -> None:
        """A turn, or the opening of a session where it is None, is complete."""
        if self._journal is None or self._session_records is None or sequence.ephemeral:
            then(None)
            return
        session, command = sequence.session, sequence.command
        if turn is None:
            write = self._session_records.opening(session, sequence.images)
        else:
            assert isinstance(command, Prompt)
            write = self._session_records.turn(
                session,
                turn,
                command,
                sequence.images,
                creates_session=sequence.creates_session,
                past=sequence.past,
            )
        self._journal.write(session, write, then)

    def recall(self, session: Session[Context], then: Callable[[Session[Context]], None]) -> None:
        """A request for the session has come: KV states that are in the store are read; until `then`, they are `incoming`."""
        if self.spill is not None:
            self.spill.recall(session, then)

    def parked(self) -> None:
        """A session has nothing to do any more, and may have to leave the device some time."""
        if self.spill is not None:
            self.spill.tidy()

    def lend(self, source: Session[Context], fork: Session[Context]) -> None:
        """A fork that has got no KV states may read those of its source that are in the store."""
        if self.spill is not None:
            self.spill.lend(source, fork)

    def rewound(self, session: Session[Context], to_turn: int, then: Done) -> None:
        """The session goes back to what it was after a turn."""
        if self._journal is None or self._session_records is None:
            then(None)
        else:
            self._journal.write(session, self._session_records.rewound(session, to_turn), then)

    def forked(self, session: Session[Context], then: Done) -> None:
        """The session was made from another one."""
        if self._journal is None or self._session_records is None:
            then(None)
        else:
            self._journal.write(session, self._session_records.whole(session), then)

    def ended(
        self,
        session: Session[Context],
        reason: Literal["closed", "expired"],
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """The session is over; it is so even where the store cannot be told, which forgets it when its time is up."""
        if self._journal is None or self._session_records is None:
            then()
            return

        def told(outcome: Any) -> None:
            if isinstance(outcome, Exception):
                logger.warning("an ended session could not be removed from the store: %s", outcome)
            then()
            if self.spill is not None:
                self.spill.ended(session)

        known = self._journal.known(session)
        self._journal.run(
            partial(self._session_records.end, session.session_id, reason, known), told
        )

    def look_behind(self, session: Session[Context], then: Callable[[bool], None]) -> bool:
        """Looks whether another server has gone on with a session that is here; `then` gets the answer.

        Returns False where there is no store to look in.
        """
        if self._journal is None or self._session_records is None:
            return False
        known = self._journal.known(session)
        # A store that does not answer tells nothing.
        self._journal.run(
            partial(self._session_records.has_more, session.session_id, known),
            lambda outcome: then(outcome is True),
        )
        return True

    def fetch(self, session_id: str, message: Submit, then: Waiting) -> bool:
        """Looks for a session in the store; `then` gets the message and None, or the reason why there is no such session.

        Messages are given back in the order in which they came. Returns False where there is no store to look in.
        """
        if self._journal is None or self._session_records is None:
            return False
        is_new = session_id not in self._wanted  # those that wait may all have been dropped
        self._wanted.setdefault(session_id, []).append(message)
        if is_new:
            load = partial(self._session_records.load, session_id, in_use=message.is_retry)
            self._journal.run(load, partial(self._loaded, session_id, then))
        return True

    def is_wanted(self, session_id: str) -> bool:
        """Whether the session is being looked for."""
        return session_id in self._wanted

    def drop(self, request_id: str) -> None:
        """The client of this request is gone."""
        for wanted in self._wanted.values():
            # The list stays, even empty: the session is on its way.
            wanted[:] = [message for message in wanted if message.request_id != request_id]

    def _loaded(self, session_id: str, then: Waiting, outcome: Any) -> None:
        reason = self._adopt(session_id, outcome)
        for message in self._wanted.pop(session_id):
            then(message, reason)

    def _adopt(self, session_id: str, outcome: Any) -> StatefulError | None:
        assert self._journal is not None
        if isinstance(outcome, Recovered):
            try:
                in_use = any(message.is_retry for message in self._wanted[session_id])
                self._table.adopt(outcome.session, in_use=in_use)
            except StatefulError as error:
                return error
            self._journal.adopted(outcome.session, outcome.known)
            return None
        if isinstance(outcome, StatefulError):
            return outcome
        if isinstance(outcome, StoreError):
            logger.error("a session could not be read from the store: %s", outcome)
            return StoreFailed("the store of sessions does not answer", retry_after_s=1.0)
        return defect(outcome, "reading a session from the store")


def make_persistence(
    model: Model,
    store: StoreAccess | None,
    table: SessionTable[Context],
    shared: SharedCache[ImageInput | Prefix],
    *,
    results: ResultQueue,
    clock: Callable[[], float],
    utc: Callable[[], float],
    idle_s: float,
    spill: int = 0,
) -> TurnPersistence:
    """The sessions of `table`, idle for at most `idle_s`, in a store or in none; with `spill` bytes of KV states at most."""
    if store is None:
        return TurnPersistence(table)
    journal = Journal(store, results)
    session_records = SessionRecords(
        model,
        store.store,
        shared,
        writer=journal.writer,
        content=store.content,
        idle_s=idle_s,
        clock=clock,
        utc=utc,
    )
    if not spill:
        return TurnPersistence(table, journal, session_records)
    spiller = KvOffload(
        model,
        table,
        store,
        results,
        budget_bytes=spill,
        may_write=session_records.keeps,  # what was said can be told from the states
        clock=clock,
    )
    return TurnPersistence(table, journal, session_records, spiller)
