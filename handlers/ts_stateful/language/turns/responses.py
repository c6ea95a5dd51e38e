"""Turns of the Responses API: found by session and number, continued, branched, discarded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence as Items
from functools import partial

from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.history import Message, Turn
from ts_stateful.language.conversation.turn import Sequence, TurnStatus
from ts_stateful.language.persistence.persistence import NoPersistence
from ts_stateful.language.text.chat_template import ChatText
from ts_stateful.language.turns.branches import Branches
from ts_stateful.language.turns.idempotency import prompts_of
from ts_stateful.language.turns.lifecycle import Turns
from ts_stateful.protocol.answers import Closed, Recalled
from ts_stateful.protocol.chat import Discard, Recall, Respond, Said
from ts_stateful.protocol.errors import (
    InvalidRequest,
    QueueFull,
    SessionNotFound,
    StatefulError,
    TurnGap,
)
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Open
from ts_stateful.sessions.session import Session

__all__ = ["ResponseTurns"]


class ResponseTurns:
    """The turns of one engine that have a note; raises a `StatefulError` if a request is refused."""

    def __init__(
        self, turns: Turns, branches: Branches, persistence: NoPersistence, text: ChatText
    ) -> None:
        self._turns = turns
        self._text = text
        self._waiters = turns.waiters
        self._outbox = turns.outbox
        self._branches = branches
        self._persistence = persistence

    def session_for(
        self, message: Submit, session: Session[Context], command: Respond
    ) -> Session[Context]:
        """Return the session for a turn: `session`, or a fork of it if it has gone on or has to stay.

        Raises:
            TurnGap: there is no such turn.
            SessionNotFound: it has no note.
            QueueFull: it is in progress, and cannot be forked yet.
            InvalidRequest: the client expects other messages.
        """
        made = self._made_before(message, session, command)
        if made is not None:
            return made
        pending = prompts_of(session)
        num_turns = len(session.state.turns) + len(pending)
        after = num_turns if command.after is None else command.after
        _check_known(session, pending, after)
        if command.expects is not None:
            self._check_expected(
                session.state.turns[command.expects_after : after], command.expects
            )
        if after == num_turns and not (message.ephemeral or command.forks):
            return session
        if session.work and isinstance(session.work[0].command, Open):
            raise QueueFull("the session is still being opened; try again", retry_after_s=1.0)
        if after > len(session.state.turns):
            raise QueueFull(
                f"turn {after} is in progress; try again when it has ended", retry_after_s=1.0
            )
        return self._branches.fork_for(message, session, command, after)

    def recall(self, message: Submit, session: Session[Context], command: Recall) -> None:
        """Answer with a turn, or let the request wait for one that is in progress if it streams or ends that.

        Raises:
            TurnGap, SessionNotFound: there is no such turn.
        """
        pending = prompts_of(session)
        turn = len(session.state.turns) + len(pending) if command.turn is None else command.turn
        if turn == 0:
            raise SessionNotFound("this session has no response")
        _check_known(session, pending, turn)
        if turn <= len(session.state.turns):
            self._answer(message, session, command, turn)
            return
        sequence = pending[turn - len(session.state.turns) - 1]
        if not (command.stream or command.cancels):
            self._answer(message, session, command, turn)
            return
        self._waiters.subscribe(sequence, message)
        sequence.cancelled |= command.cancels
        if command.cancels and sequence.status is TurnStatus.RUNNING:
            self._turns.finish(sequence, "cancelled")

    def discard(self, request_id: str, session: Session[Context], command: Discard) -> bool:
        """Forget the note of a turn, and the last turns if none has one; return True if the session is to be closed.

        Raises:
            TurnGap, SessionNotFound: there is no such turn, or the session is in use; then `field` is set.
        """
        _check_known(session, prompts_of(session), command.turn)
        if session.busy:
            raise TurnGap("a turn is in progress; cancel it, or wait for its end", field="turn")
        notes = enumerate(_notes(session), start=1)
        left = [number for number, note in notes if note and number != command.turn]
        if not left:
            return True
        last = left[-1]

        def done(error: StatefulError | None) -> None:
            if error is not None:
                self._outbox.refuse(request_id, error, session.session_id)
                return
            turns = session.state.turns
            turns[command.turn - 1] = dataclasses.replace(turns[command.turn - 1], note="")
            if last < len(turns):
                session.state.rewind(turns[:last])
            self._outbox.answer(request_id, Closed(session.session_id, closed=False))

        write = partial(self._persistence.discarded, session, command.turn, last)
        self._turns.write_down(session, command, write, done)
        return False

    def _check_expected(self, turns: Items[Turn], expected: Items[Said]) -> None:
        held = [said for turn in turns for said in turn.delta.messages]
        sent = list(map(self._text.chat_message, expected))
        calls = (call.id for said in expected for call in said.tool_calls)
        known = "".join(said.fields for said in held)
        is_known = all(json.dumps(name, ensure_ascii=False) in known for name in calls)
        if not is_known or _without_replies(held) != _without_replies(sent):
            raise InvalidRequest(
                "the items up to the last `item_reference` and its calls are not of its response; send all items themselves",
                field="input",
            )

    def _made_before(
        self, message: Submit, session: Session[Context], command: Respond
    ) -> Session[Context] | None:
        """Return the fork that an engine which died made for this request."""
        table, name = self._turns.table, command.new_session_id
        if not message.is_retry or name is None or name not in table:
            return None
        made = table.get(name)
        return made if made.origin == message.request_id and made is not session else None

    def _answer(
        self, message: Submit, session: Session[Context], command: Recall, number: int
    ) -> None:
        pending = prompts_of(session)[: max(0, number - len(session.state.turns))]
        session_id = session.session_id
        if pending:
            note = pending[-1].note
            document = Recalled(text="", session_id=session_id, turn=number, note=note)
        else:
            document = self._outbox.recalled(session, session.state.turns[number - 1])
        if command.all:
            document = self._outbox.history(session, document)
        self._outbox.answer(message.request_id, document, session_id=session_id, turn=number)


def _without_replies(messages: Items[Message]) -> list[object]:
    return [said.identity for said in messages if said.role != "assistant"]


def _notes(session: Session[Context]) -> list[str]:
    """Return the notes of the session's own turns, and an empty one for each that a branch copied."""
    return ["" if turn.copied else turn.note for turn in session.state.turns]


def _check_known(session: Session[Context], pending: list[Sequence], number: int) -> None:
    """Check that a turn has a note, if it is one."""
    notes = _notes(session) + [sequence.note for sequence in pending]
    if number > len(notes):
        raise TurnGap(f"there is no turn {number} of this session")
    if number and not notes[number - 1]:
        raise SessionNotFound(f"turn {number} of this session is no response")
