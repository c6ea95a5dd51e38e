"""What is asked again: requests that an engine had before it died, and turns that a client names by their number.

Owns that nothing is done twice. Knows nothing of how it is done the first time.
"""

from __future__ import annotations

from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.turn import Sequence, Subscriber
from ts_stateful.language.turns.outbox import TurnOutbox
from ts_stateful.language.turns.preparation import check_number
from ts_stateful.language.turns.waiters import Waiters
from ts_stateful.protocol.answers import Closed
from ts_stateful.protocol.errors import SessionClosed, StatefulError
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Close, Prompt
from ts_stateful.sessions.session import Session
from ts_stateful.sessions.table import SessionTable

__all__ = ["Idempotency", "prompts_of"]


class Idempotency:
    """Answers what was done before, for the sessions of one engine."""

    def __init__(self, table: SessionTable[Context], waiters: Waiters, outbox: TurnOutbox) -> None:
        self._table = table
        self._waiters = waiters
        self._outbox = outbox

    def opened_before(self, message: Submit) -> bool:
        """Answers an `open` whose session an engine that died had opened, but not said so."""
        session_id = message.command.session_id
        if not message.is_retry or session_id is None or session_id not in self._table:
            return False
        session = self._table.get(session_id)
        if session.origin != message.request_id:
            return False
        self._outbox.reopened(message.request_id, session)
        return True

    def answered_before(self, message: Submit) -> bool:
        """Answers a prompt whose turn an engine that died had committed, but not said so."""
        session_id = message.command.session_id
        if session_id is None or session_id not in self._table:
            return False
        session = self._table.get(session_id)
        turn = next((t for t in session.turns if t.origin == message.request_id), None)
        if turn is not None:
            until = self._outbox.unix_time(session.expires_at) if message.creates_session else None
            self._outbox.replayed(_subscriber(message), session_id, turn, opened_until=until)
        return turn is not None

    def closed_before(self, message: Submit, error: StatefulError) -> bool:
        """Answers a `close` that an engine that died had done, but not said so; `error` is what has become of the session."""
        command = message.command
        closed = isinstance(command, Close) and isinstance(error, SessionClosed)
        if message.is_retry and closed and command.session_id is not None:
            answer, name = Closed(command.session_id), command.session_id
            self._outbox.answer(message.request_id, answer, session_id=name, closed=True)
            return True
        return False

    def reattach(self, session: Session[Context], turn: int, message: Submit) -> bool:
        """Answers a retried turn from its record, or attaches it to the turn in progress or in the queue."""
        if turn <= len(session.turns):
            self._outbox.replayed(_subscriber(message), session.session_id, session.turns[turn - 1])
            return True
        prompts = prompts_of(session)
        ahead = turn - len(session.turns) - 1
        if ahead >= len(prompts):
            check_number(turn, len(session.turns) + len(prompts) + 1)
            return False
        self._waiters.subscribe(prompts[ahead], message)
        return True


def prompts_of(session: Session[Context]) -> list[Sequence]:
    """The turns that are not committed, the next one first."""
    return [work for work in session.work if isinstance(work.command, Prompt)]


def _subscriber(message: Submit) -> Subscriber:
    return Subscriber(
        message.request_id, message.streams and not message.pull, message.pull, message.skip
    )
