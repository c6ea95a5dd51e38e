"""Requests against the engine of a model with recurrent state: what each type asks for.

Owns the rules of step numbers and queues, and how sequences are opened, forked and closed. Knows nothing of models or stores.
"""

from __future__ import annotations

from functools import partial

from ts_stateful.engine.core import EngineCore
from ts_stateful.engine.waiting import PendingRequest
from ts_stateful.protocol.answers import Forked, Opened, Usage, encode
from ts_stateful.protocol.errors import (
    InvalidRequest,
    QueueFull,
    SessionClosed,
    SessionNotFound,
    StatefulError,
)
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Close, Fork, Hello, Info, Open, Step
from ts_stateful.recurrent.batch import InputRow
from ts_stateful.recurrent.lifecycle import StepLifecycle
from ts_stateful.recurrent.lookup import Sequences, gap
from ts_stateful.recurrent.outbox import StepOutbox
from ts_stateful.recurrent.persistence import NoStepPersistence
from ts_stateful.recurrent.reports import hello, info
from ts_stateful.recurrent.sequence import SequenceState
from ts_stateful.recurrent.step import PendingStep, identity
from ts_stateful.recurrent.step_records import Answered
from ts_stateful.sessions.session import Session

__all__ = ["RecurrentRequests"]

_Session = Session[SequenceState]


class RecurrentRequests:
    """Takes the requests of one engine; raises a `StatefulError` if one is refused."""

    def __init__(
        self,
        core: EngineCore[SequenceState],
        sequences: Sequences,
        steps: StepLifecycle,
        outbox: StepOutbox,
        persistence: NoStepPersistence,
    ) -> None:
        self._core = core
        self._max_waiting = core.config.frontend.max_sequence_job_queue_size
        self._table = core.table
        self._sequences = sequences
        self._steps = steps
        self._outbox = outbox
        self._persistence = persistence

    def handle(self, request: PendingRequest) -> None:
        """Take a request."""
        message, command = request.message, request.message.command
        answered = self._persistence.answered(request)
        if answered is not None:
            self._outbox.send([message.request_id], command.session_id or "", answered)
        elif isinstance(command, Step):
            self._step(request, command)
        elif isinstance(command, Open):
            self._open(request, command)
        elif isinstance(command, Close):
            self._close(message, command)
        elif isinstance(command, Info):
            session = self._table.get(command.session_id or "")
            answer = info(session, self._core.clock)
            self._outbox.answer(message.request_id, answer, session_id=session.session_id)
        elif isinstance(command, Fork):
            self._fork(request, command)
        elif isinstance(command, Hello):
            greeting = hello(self._core.config, self._outbox.model_name, message.profile)
            self._outbox.answer(message.request_id, greeting)
        else:
            raise InvalidRequest(
                "this model has recurrent states: it takes `step`, `open`, `close`, `fork`, `info`, `hello`",
                field="type",
            )

    def _step(self, request: PendingRequest, command: Step) -> None:
        message = request.message
        asked = identity(command, message.attachments, message.shapes)
        ended = self._sequences.last_answer(request) if asked else None
        if ended is not None and ended.identity == asked:
            self._outbox.replay(message.request_id, command, ended)
            return
        session, creates_session = self._sequences.of_step(request, command)
        if command.turn is not None and self._attached(session, command, message, asked):
            return
        if len(session.work) > self._max_waiting:
            raise QueueFull(
                f"this session's queue is full ({len(session.work) - 1} steps, maxSequenceJobQueueSize);"
                " wait for an answer first",
                retry_after_s=0.1,
            )
        if not creates_session:  # else that was checked before
            self._core.quotas.check_turn(message, self._table)
        row = InputRow(message.attachments, message.shapes, end=command.end)
        self._steps.add(
            PendingStep(
                session, command, row, (message.request_id,), message.encoding, creates_session
            )
        )

    def _attached(self, session: _Session, command: Step, message: Submit, asked: bytes) -> bool:
        """Return True if a step of this number waits or is done; its answer goes to this request too.

        `asked` is the identity of the request's step.
        """
        for step in reversed(session.work):
            if step.command.turn == command.turn and step.identity == asked:
                _attach(step, message.request_id, command.id)
                return True
            if step.command.start or step.command.end:
                break  # those before it are of another sequence
        state = session.state
        last = None if session.busy else state.last_answer
        is_same = last is not None and (not asked or last.identity == asked)
        if last is not None and is_same and command.turn == state.num_steps:
            self._outbox.replay(message.request_id, command, last)
            return True
        if session.busy or command.start or command.turn == state.num_steps + 1:
            return False  # checked when it is its turn
        raise gap(command.turn, state.num_steps + 1)

    def _open(self, request: PendingRequest, command: Open) -> None:
        message = request.message
        if command.system is not None or command.media or message.attachments:
            field = (
                "system" if command.system is not None else "audio" if command.audio else "images"
            )
            raise InvalidRequest("a model with recurrent states takes none", field=field)
        if command.adapter is not None:
            raise InvalidRequest("a model with recurrent states has no adapters", field="adapter")
        assert command.session_id is not None
        session = self._sequences.begin(
            command.session_id,
            request.missing.get(command.session_id),
            ttl_s=command.ttl_s,
            metadata=dict(command.metadata),
        )
        answer = Opened(session.session_id, self._core.clock.rfc3339(session.expires_at), Usage())
        self._answer_opened(message.request_id, session, answer)

    def _fork(self, request: PendingRequest, command: Fork) -> None:
        message = request.message
        source = self._table.get(command.session_id or "")
        resume = partial(self._core.waiting.resume, message)
        if self._persistence.when_written(source, resume):
            return  # the last step may have to be undone
        session = self._sequences.fork(request, source, command)
        answer = Forked(
            session.session_id,
            self._core.clock.rfc3339(session.expires_at),
            Usage(),
            forked_from=source.session_id,
            turn=session.state.num_steps,
        )
        self._answer_opened(message.request_id, session, answer)

    def _answer_opened(self, request_id: str, session: _Session, answer: Opened) -> None:
        until = self._outbox.until(session.expires_at)
        answered = Answered((request_id,), encode(answer), opened_until=until)

        def written(error: StatefulError | None) -> None:
            if error is None:
                self._outbox.send([request_id], session.session_id, answered)
                return
            self._outbox.refuse(request_id, error, session.session_id)
            self._steps.lose(session, error)

        self._persistence.write(session, answered, written)

    def _close(self, message: Submit, command: Close) -> None:
        session_id = command.session_id
        answer = partial(self._outbox.closed, message.request_id, command)
        if command.erase and session_id is not None and session_id not in self._table:
            self._persistence.erase(session_id, answer)
            return
        try:
            session = self._table.get(session_id or "")
        except SessionNotFound:
            if not message.is_retry:  # else the engine that died closed it
                raise
            self._outbox.closed(message.request_id, command)
            return
        self._steps.refuse_all(session, SessionClosed("the session was closed"))
        self._table.close(session)
        self._persistence.ended(session, "closed", answer)


def _attach(step: PendingStep, request_id: str, client_id: str | None) -> None:
    step.request_ids += (request_id,)
    if client_id != step.command.id:
        step.other_ids = {**(step.other_ids or {}), request_id: client_id}
