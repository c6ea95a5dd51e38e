"""Repeated requests, of engines that died and of clients that retry: nothing is done twice."""

from __future__ import annotations

from ts_stateful.engine.waiting import PendingRequest
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.history import Turn
from ts_stateful.language.conversation.turn import Sequence, Subscriber
from ts_stateful.language.text.marked_chat import unmarked
from ts_stateful.language.turns.lifecycle import Turns
from ts_stateful.language.turns.preparation import check_number
from ts_stateful.protocol.errors import SessionClosed, TurnGap
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Close, Prompt
from ts_stateful.sessions.session import Session
from ts_stateful.sessions.table import SessionTable

__all__ = ["Idempotency", "prompts_of"]


class Idempotency:
    """Answers repeated requests for the sessions of one engine. Each method returns False if the request is new."""

    def __init__(self, table: SessionTable[Context], turns: Turns) -> None:
        self._table = table
        self._waiters = turns.waiters
        self._outbox = turns.outbox

    def opened_before(self, message: Submit) -> bool:
        """Answer an `open` whose session is open already."""
        session_id = message.command.session_id
        if not message.is_retry or session_id is None or session_id not in self._table:
            return False
        session = self._table.get(session_id)
        if session.origin != message.request_id:
            return False
        self._outbox.reopened(message.request_id, session)
        return True

    def answered_before(self, message: Submit) -> bool:
        """Answer a prompt whose turn is committed already."""
        known = [name for name in message.session_ids if name in self._table]
        for session_id in reversed(known):
            session = self._table.get(session_id)
            turn = next((t for t in session.state.turns if t.origin == message.request_id), None)
            if turn is None:
                continue
            if not turn.delta.has_reply:
                self._outbox.added(Subscriber.of(message), session, turn)
                return True
            until = self._outbox.until(session.expires_at) if message.creates_session else None
            self._outbox.replayed(Subscriber.of(message), session_id, turn, opened_until=until)
            return True
        return False

    def closed_before(self, request: PendingRequest) -> bool:
        """Answer a `close` whose session the store has as closed."""
        message, command = request.message, request.message.command
        if not (message.is_retry and isinstance(command, Close)) or command.erase:
            return False
        missing = request.missing.get(command.session_id or "")
        closed = missing is not None and isinstance(missing.error, SessionClosed)
        if closed:
            self._outbox.closed(message.request_id, command)
        return closed

    def reattach(self, session: Session[Context], turn: int, message: Submit) -> bool:
        """Answer a retried turn from its record, or attach the request to the turn in progress or in the queue.

        Raises:
            TurnGap: there is no such turn, or it was another prompt.
        """
        if turn <= len(session.state.turns):
            _check_same(message, _prompt_of(session.state.turns[turn - 1]), turn)
            self._outbox.replayed(
                Subscriber.of(message), session.session_id, session.state.turns[turn - 1]
            )
            return True
        prompts = prompts_of(session)
        ahead = turn - len(session.state.turns) - 1
        if ahead >= len(prompts):
            check_number(turn, len(session.state.turns) + len(prompts) + 1)
            return False
        pending = prompts[ahead].command
        assert isinstance(pending, Prompt)
        _check_same(message, unmarked(pending.prompt), turn)
        self._waiters.subscribe(prompts[ahead], message)
        return True


def _prompt_of(turn: Turn) -> str:
    """Return the text of a committed turn's last message before the reply."""
    said = turn.delta.messages[: -1 if turn.delta.has_reply else None]
    return unmarked(said[-1].text) if said else ""


def _check_same(message: Submit, prompt: str, turn: int) -> None:
    command = message.command
    if type(command) is Prompt and unmarked(command.prompt) != prompt:
        raise TurnGap(
            f"turn {turn} was another prompt, of another client perhaps; ask for the session's turns, and send the next",
            field="turn",
        )


def prompts_of(session: Session[Context]) -> list[Sequence]:
    """Return the turns that are not committed, the next one first."""
    return [work for work in session.work if isinstance(work.command, Prompt)]
