"""Forks and rewinds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ts_stateful.engine.core import EngineCore
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.history import Turn
from ts_stateful.language.network.load import Model
from ts_stateful.language.persistence.persistence import NoPersistence
from ts_stateful.language.turns import reports
from ts_stateful.language.turns.kv_lending import lend_kv
from ts_stateful.language.turns.lifecycle import Turns
from ts_stateful.protocol.answers import Rewound
from ts_stateful.protocol.chat import Respond
from ts_stateful.protocol.errors import InvalidRequest, SessionExists, StatefulError, TurnGap
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Fork, Open, Rewind
from ts_stateful.sessions.session import Session

__all__ = ["Branches"]


class Branches:
    """Forks and rewinds the sessions of one engine; raises a `StatefulError` if one is refused."""

    def __init__(
        self, core: EngineCore[Context], model: Model, turns: Turns, persistence: NoPersistence
    ) -> None:
        self._model = model
        self._table = core.table
        self._turns = turns
        self._outbox = core.outbox
        self._persistence = persistence

    def forked_before(self, request_id: str, command: Fork) -> bool:
        """Answer a repeated `fork` if the session was made before; return False if it was not."""
        name = command.new_session_id
        fork = self._table.get(name) if name is not None and name in self._table else None
        if fork is None or fork.origin != request_id:
            return False
        self._answer(request_id, fork, str(command.session_id))
        return True

    def fork(self, request_id: str, source: Session[Context], command: Fork) -> None:
        """Open a new session with the same history, up to a turn."""
        if command.new_session_id is None:
            raise InvalidRequest("name the new session", field="new_session_id")
        if source.work and isinstance(source.work[0].command, Open):
            raise TurnGap("the session is still being opened; fork it when that is answered")
        at_turn = len(source.state.turns) if command.at_turn is None else command.at_turn
        turns = _first_turns(source, at_turn, "at_turn")
        fork = self._made(source, turns, command, origin=request_id)

        def done(error: StatefulError | None) -> None:
            if error is None:
                self._answer(request_id, fork, source.session_id)
            else:
                self._table.forget(fork)
                if isinstance(error, SessionExists):
                    error.field = "new_session_id"
                self._outbox.refuse(request_id, error, fork.session_id)

        self._turns.write_down(fork, command, partial(self._persistence.forked, fork), done)

    def fork_for(
        self, message: Submit, source: Session[Context], command: Respond, after: int
    ) -> Session[Context]:
        """Open a new session for a turn that follows turn `after` of `source`; the turn waits until it is written."""
        turns = [
            replace(turn, copied=True)
            for turn in _first_turns(source, after, "previous_response_id")
        ]
        asked = Fork(new_session_id=command.new_session_id)
        fork = self._made(
            source, turns, asked, origin=message.request_id, ephemeral=message.ephemeral
        )
        fork.yields = source.yields
        if not message.ephemeral:
            write = partial(self._persistence.forked, fork)
            self._turns.write_down(fork, asked, write, lambda error: None)
        return fork

    def _made(
        self,
        source: Session[Context],
        turns: list[Turn],
        command: Fork,
        *,
        origin: str,
        ephemeral: bool = False,
    ) -> Session[Context]:
        """Open a session with a history of `source`, and with its KV states."""
        self._table.touch(source)
        metadata = source.metadata if command.metadata is None else command.metadata
        try:
            fork = self._table.open(
                str(command.new_session_id),
                source.state.fork(turns, self._model.new_kv()),
                ttl_s=command.ttl_s,
                metadata=dict(metadata),
                origin=origin,
                ephemeral=ephemeral,
                spared=source,
            )
        except SessionExists as error:
            raise SessionExists(error.message, field="new_session_id") from None
        lend_kv(source, fork.state, self._table)
        self._table.tally.changed(fork)
        self._persistence.lend(source, fork)
        return fork

    def _answer(self, request_id: str, fork: Session[Context], source_id: str) -> None:
        self._outbox.answer(
            request_id,
            reports.forked(fork, source_id, self._outbox.clock),
            session_id=fork.session_id,
            opened_until=self._outbox.until(fork.expires_at),
        )

    def rewind(self, request_id: str, session: Session[Context], command: Rewind) -> None:
        """Make the session what it was after a turn."""
        if session.busy:
            raise TurnGap("a turn is in progress; cancel it or wait for its end before you rewind")
        turns = _first_turns(session, command.to_turn, "to_turn")
        self._table.touch(session)

        def done(error: StatefulError | None) -> None:
            if error is not None:
                self._outbox.refuse(request_id, error, session.session_id)
                return
            session.state.rewind(turns)
            answer = Rewound(session.session_id, len(turns), len(session.state.log))
            self._outbox.answer(request_id, answer, session_id=session.session_id)

        write = partial(self._persistence.rewound, session, len(turns))
        self._turns.write_down(session, command, write, done)


def _first_turns(session: Session[Context], count: int, field: str) -> list[Turn]:
    if count > len(session.state.turns):
        raise TurnGap(
            f"turn {count} was asked for, but the session has {len(session.state.turns)}",
            field=field,
        )
    return session.state.turns[:count]
