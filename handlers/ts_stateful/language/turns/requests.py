"""Requests against an engine: what each type asks for.

Owns the rules of turn numbers, queues and `continue`. Knows nothing of forward passes: it admits, finishes and fails turns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import structs

from ts_stateful.config.schema import Config
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.turn import Sequence, Status
from ts_stateful.language.network.load import Model
from ts_stateful.language.persistence.persistence import TurnPersistence
from ts_stateful.language.turns import reports
from ts_stateful.language.turns.branches import Branches
from ts_stateful.language.turns.idempotency import Idempotency, prompts_of
from ts_stateful.language.turns.lifecycle import Turns
from ts_stateful.language.turns.outbox import TurnOutbox
from ts_stateful.language.turns.preparation import check_length
from ts_stateful.language.turns.waiters import Waiters
from ts_stateful.language.vision.uploads import Uploads
from ts_stateful.protocol.answers import Cancelled, Closed
from ts_stateful.protocol.errors import (
    InvalidRequest,
    QueueFull,
    SessionClosed,
    SessionExpired,
    SessionNotFound,
    StatefulError,
    TurnGap,
)
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import (
    Cancel,
    Close,
    Continue,
    Fork,
    Hello,
    Image,
    Info,
    Open,
    Prompt,
    Rewind,
    Upload,
)
from ts_stateful.sessions.session import Session
from ts_stateful.sessions.table import SessionTable

__all__ = ["LanguageRequests"]

# A `continue` in the continuous and sequence profiles waits for the next token, not longer.
_SHORT_WAIT_S = 0.010


class LanguageRequests:
    """Takes the requests of one engine; raises a `StatefulError` where one is refused."""

    def __init__(
        self,
        config: Config,
        model: Model,
        table: SessionTable[Context],
        turns: Turns,
        waiters: Waiters,
        outbox: TurnOutbox,
        clock: Callable[[], float],
        *,
        persistence: TurnPersistence,
        is_retry: Callable[[Submit], None],
    ) -> None:
        self._config = config
        self._model = model
        self._table = table
        self._turns = turns
        self._waiters = waiters
        self._outbox = outbox
        self._clock = clock
        self._persistence = persistence
        self._again = is_retry
        self._branches = Branches(model, table, turns, outbox, persistence)
        self._idempotency = Idempotency(table, waiters, outbox)
        self._uploads = Uploads(config.handler.media)

    @property
    def upload_bytes(self) -> int:
        """Bytes of images that came in parts, and of parts of them."""
        return self._uploads.num_bytes

    def handle(self, message: Submit) -> None:
        """Takes a request of a client; where it is for a session that is not here, when that has been looked for."""
        session_id = message.command.session_id
        if session_id is None:
            self._handle(message)
            return
        # What an engine that died had of a session that it opened may be in the store, or not.
        lost = message.creates_session and message.is_retry and session_id not in self._table
        if (lost or self._persistence.is_wanted(session_id)) and self._fetch(session_id, message):
            return
        try:
            self._handle(message)
        except (SessionNotFound, SessionExpired) as error:
            # One that has idled here may have been in use elsewhere.
            if session_id in self._table or not self._fetch(session_id, message, error):
                raise
        except TurnGap as error:
            if not self._look_behind(session_id, message, error):
                raise

    def _look_behind(self, session_id: str, message: Submit, error: TurnGap) -> bool:
        """Whether it is looked for the missing turn in the store: the session may have been elsewhere since."""
        session = self._table.get(session_id)

        def told(went_on: bool) -> None:
            if not went_on:
                self._outbox.refuse(message.request_id, error, session_id)
                return
            if not session.busy:
                self._table.forget(session)
            self._again(message)

        return not session.busy and self._persistence.look_behind(session, told)

    def _fetch(self, session_id: str, message: Submit, known: StatefulError | None = None) -> bool:
        return self._persistence.fetch(session_id, message, partial(self._fetched, known))

    def _fetched(
        self, known: StatefulError | None, message: Submit, error: StatefulError | None
    ) -> None:
        if isinstance(error, SessionNotFound) and isinstance(known, SessionExpired):
            error = known  # it was never written
        # A fork opens another session than the one that was looked for.
        creates_session = message.creates_session and not isinstance(message.command, Fork)
        gone = isinstance(error, SessionNotFound | SessionClosed | SessionExpired)
        if error is None or (creates_session and gone):
            self._again(
                structs.replace(message, is_retry=False) if creates_session and gone else message
            )
        elif not self._idempotency.closed_before(message, error):
            self._outbox.refuse(message.request_id, error, message.command.session_id)

    def _handle(self, message: Submit) -> None:
        command = message.command
        if isinstance(command, Hello):
            hello = reports.hello(self._config, self._model, message.profile)
            self._outbox.answer(message.request_id, hello)
        elif isinstance(command, Open):
            if not self._idempotency.opened_before(message):
                self._admit(self._new_session(message, command), command, message)
        elif isinstance(command, Prompt):
            self._prompt(message, command)
        elif isinstance(command, Continue):
            self._continue(message, command)
        elif isinstance(command, Cancel):
            self._cancel(message.request_id, self._session(command.session_id))
        elif isinstance(command, Close):
            self._close(message, self._session(command.session_id))
        elif isinstance(command, Fork):
            self._fork(message, command)
        elif isinstance(command, Rewind):
            self._branches.rewind(message.request_id, self._session(command.session_id), command)
        elif isinstance(command, Upload):
            self._upload(message, command)
        elif isinstance(command, Info):
            session = self._session(command.session_id)
            saved = self._persistence.is_saved(session)
            answer = reports.info(session, self._outbox, self._clock(), saved=saved)
            self._outbox.answer(message.request_id, answer, session_id=session.session_id)
        else:
            raise InvalidRequest(
                "this model holds conversations: it takes `prompt`, not `step`", field="type"
            )

    def _fork(self, message: Submit, command: Fork) -> None:
        name, request_id = command.new_session_id, message.request_id
        if message.is_retry and name is not None:
            if self._branches.forked_before(request_id, command):
                return
            lost = name not in self._table
            if lost and self._persistence.fetch(name, message, self._fetched_fork):
                return
        self._branches.fork(request_id, self._session(command.session_id), command)

    def _fetched_fork(self, message: Submit, error: StatefulError | None) -> None:
        self._again(structs.replace(message, is_retry=error is None))

    def _session(self, session_id: str | None) -> Session[Context]:
        if session_id is None:
            raise InvalidRequest("name the session, in the header or here", field="session_id")
        return self._table.get(session_id)

    def _new_session(self, message: Submit, command: Open | Prompt) -> Session[Context]:
        if command.session_id is None:
            raise InvalidRequest("name the session", field="session_id")
        self._check_images(command.images, message.attachments)
        self._uploads.find(None, command.images)
        check_length(command, self._model.context_tokens)
        asked = command if isinstance(command, Open) else Open()
        num_images = len(asked.images) + (len(message.attachments) if asked is command else 0)
        opening = self._model.text.begin(asked.system, num_images)
        return self._table.open(
            command.session_id,
            Context(opening, self._model.new_kv()),
            ttl_s=asked.ttl_s,
            metadata=dict(asked.metadata),
            origin=message.request_id,
        )

    def _prompt(self, message: Submit, command: Prompt) -> None:
        if message.is_retry and self._idempotency.answered_before(message):
            return
        if message.creates_session:
            self._admit(self._new_session(message, command), command, message)
            return
        session = self._session(command.session_id)
        if command.turn is not None and self._idempotency.reattach(session, command.turn, message):
            return
        self._check_images(command.images, message.attachments)
        check_length(command, self._model.context_tokens)
        waiting = sum(work.status is not Status.RUNNING for work in session.work)
        if session.busy and waiting >= self._config.frontend.max_sequence_job_queue_size:
            raise QueueFull(
                f"{waiting} prompts of this session wait, which is maxSequenceJobQueueSize",
                retry_after_s=1.0,
            )
        self._admit(session, command, message)

    def _check_images(self, images: tuple[Image, ...], files: tuple[bytes, ...]) -> None:
        count, limit = len(images) + len(files), self._config.handler.media.max_images
        if count and self._model.vision is None:
            raise InvalidRequest("this model takes no images", field="images")
        if count > limit:
            raise InvalidRequest(f"{count} images; at most {limit} a request", field="images")

    def _upload(self, message: Submit, command: Upload) -> None:
        if self._model.vision is None:
            raise InvalidRequest("this model takes no images", field="type")
        session = self._session(command.session_id)
        answer = self._uploads.receive(session, command, message.attachments)
        self._table.touch(session)
        self._outbox.answer(message.request_id, answer, session_id=session.session_id)

    def _admit(self, session: Session[Context], command: Open | Prompt, message: Submit) -> None:
        images = self._uploads.find(session, command.images)
        sequence = Sequence(
            session,
            command,
            self._clock(),
            creates_session=message.creates_session,
            ephemeral=message.ephemeral,
        )
        sequence.origin, sequence.replay = message.request_id, message.replay
        self._waiters.subscribe(sequence, message)
        self._turns.admit(sequence, images, message.attachments)

    def _continue(self, message: Submit, command: Continue) -> None:
        request_id, session = message.request_id, self._session(command.session_id)
        self._table.touch(session)
        turn, done, prompts = command.turn, len(session.turns), prompts_of(session)
        if turn <= done:
            record = session.turns[turn - 1]
            self._outbox.continued(request_id, session.session_id, record, command.after)
        elif turn <= done + len(prompts):
            patient = message.profile is Profile.ASYNC and command.wait_ms
            wait_s = command.wait_ms / 1000 if patient else _SHORT_WAIT_S
            self._waiters.wait(prompts[turn - done - 1], request_id, command.after, wait_s)
        elif session.state.failed is not None and session.state.failed[0] == turn:
            raise session.state.failed[1]
        else:
            raise TurnGap(f"there is no turn {turn} of this session", field="turn")

    def _cancel(self, request_id: str, session: Session[Context]) -> None:
        running = session.work[0] if session.work else None
        cancels = running is not None and isinstance(running.command, Prompt)
        number = len(session.turns) + 1 if cancels else None
        if running is not None and cancels:
            running.cancelled = True
            if running.status is Status.RUNNING:
                self._turns.finish(running, "cancelled")
        answer = Cancelled(session.session_id, cancels, number)
        self._outbox.answer(request_id, answer, session_id=session.session_id)

    def _close(self, message: Submit, session: Session[Context]) -> None:
        if session.work and session.work[0].status is Status.COMMITTING:
            session.work[0].afterwards.append(partial(self._again, message))
            return
        error = SessionClosed("the session was closed")
        for waiting in list(session.work)[1:]:
            self._turns.fail(waiting, error)
        if session.work:
            running: Sequence = session.work[0]
            if isinstance(running.command, Prompt) and running.status is Status.RUNNING:
                running.afterwards.append(partial(self._again, message))
                self._turns.finish(running, "cancelled")
                return
            running.creates_session = False  # closed, which is not the same as never opened
            self._turns.fail(running, error)
        self._table.close(session)
        name = session.session_id
        answer = partial(
            self._outbox.answer, message.request_id, Closed(name), session_id=name, closed=True
        )
        self._persistence.ended(session, "closed", answer)
