"""The requests of language models: what each type asks for."""

from __future__ import annotations

from collections.abc import Sequence as Items
from functools import partial

from ts_stateful.engine.core import EngineCore
from ts_stateful.engine.waiting import PendingRequest
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.turn import Sequence, TurnStatus
from ts_stateful.language.encoders.uploads import Uploads
from ts_stateful.language.network.load import Model
from ts_stateful.language.network.logprobs import Chosen
from ts_stateful.language.persistence.persistence import NoPersistence
from ts_stateful.language.turns import reports
from ts_stateful.language.turns.branches import Branches
from ts_stateful.language.turns.idempotency import Idempotency, prompts_of
from ts_stateful.language.turns.lifecycle import Turns
from ts_stateful.language.turns.preparation import check_command
from ts_stateful.language.turns.responses import ResponseTurns
from ts_stateful.protocol.answers import Cancelled, SessionInfo
from ts_stateful.protocol.chat import Discard, Recall, Respond
from ts_stateful.protocol.errors import InvalidRequest, QueueFull, SessionNotFound, TurnGap
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import (
    Cancel,
    Close,
    Continue,
    Fork,
    Hello,
    Info,
    Media,
    Open,
    Prompt,
    Rewind,
    Upload,
)
from ts_stateful.sessions.session import Session

__all__ = ["LanguageRequests"]

# A `continue` in the continuous and sequence profiles waits for the next token, not longer.
_SHORT_WAIT_S = 0.010


class LanguageRequests:
    """Takes the requests of one engine; raises a `StatefulError` if one is refused."""

    def __init__(
        self, core: EngineCore[Context], model: Model, turns: Turns, persistence: NoPersistence
    ) -> None:
        self._core = core
        self._model = model
        self._table = core.table
        self._turns = turns
        self._waiters = turns.waiters
        self._outbox = turns.outbox
        self._persistence = persistence
        self._branches = Branches(core, model, turns, persistence)
        self._idempotency = Idempotency(core.table, turns)
        self._responses = ResponseTurns(turns, self._branches, persistence, model.text)
        self.uploads = Uploads(core.config.handler.media)

    def handle(self, request: PendingRequest) -> None:
        """Take a request."""
        message, command = request.message, request.message.command
        if self._idempotency.closed_before(request) or self._follows(message):
            return
        request_id = message.request_id
        if isinstance(command, Hello):
            greeting = reports.hello(self._core, self._model, message.profile)
            self._outbox.answer(request_id, greeting)
        elif isinstance(command, Open):
            if not self._idempotency.opened_before(message):
                self._admit(self._new_session(message, command), command, message, command.media)
        elif isinstance(command, Prompt):
            self._prompt(message, command)
        elif isinstance(command, Continue):
            self._continue(message, command)
        elif isinstance(command, Cancel):
            self._cancel(request_id, self._session(command.session_id, in_turn=True))
        elif isinstance(command, Close):
            self._close(message, command)
        elif isinstance(command, Fork):
            if not (message.is_retry and self._branches.forked_before(request_id, command)):
                self._branches.fork(request_id, self._session(command.session_id), command)
        elif isinstance(command, Rewind):
            self._branches.rewind(request_id, self._session(command.session_id), command)
        elif isinstance(command, Upload):
            self._upload(message, command)
        elif isinstance(command, Recall):
            self._responses.recall(message, self._session(command.session_id), command)
        elif isinstance(command, Discard):
            session = self._session(command.session_id)
            if self._responses.discard(message.request_id, session, command):
                self._close(message, Close(session_id=command.session_id))
        elif isinstance(command, Info):
            session = self._session(command.session_id)
            self._outbox.answer(request_id, self.describe(session), session_id=session.session_id)
        else:
            raise InvalidRequest(
                "this model holds conversations: it takes `prompt`, not `step`", field="type"
            )

    def _follows(self, message: Submit) -> bool:
        """Return True if an `open` or `fork` waits for the one that is writing its session, because that may fail."""
        command = message.command
        if not isinstance(command, Open | Fork):
            return False
        name = command.new_session_id if isinstance(command, Fork) else command.session_id
        self._table.expire()  # the id of a session that has expired is free
        if name is None or name not in self._table:
            return False
        work = self._table.get(name, in_turn=True).work
        if not work or work[0].status is not TurnStatus.COMMITTING:
            return False
        opens: bool = work[0].creates_session or isinstance(work[0].command, Fork)
        if opens:
            work[0].followers.append(message)
        return opens

    def describe(self, session: Session[Context]) -> SessionInfo:
        """Return the answer to an `info`."""
        saved = self._persistence.is_saved(session)
        return reports.info(session, self._model, self._core.clock, saved=saved)

    def _session(self, session_id: str | None, *, in_turn: bool = False) -> Session[Context]:
        session = self._table.get(session_id or "", in_turn=in_turn)
        if session.ephemeral:  # it ends with the answer to the request that opened it
            raise SessionNotFound("no session of this id is open here", field="session_id")
        return session

    def _new_session(self, message: Submit, command: Open | Prompt) -> Session[Context]:
        assert command.session_id is not None
        self._check_media(command, message.attachments)
        self.uploads.find(None, command.media)
        check_command(command, self._model)
        self._core.quotas.check_turn(message, self._table)
        asked = command if isinstance(command, Open) else Open()
        num_images = len(asked.media) + (len(message.attachments) if asked is command else 0)
        opening = self._model.text.begin(asked.system, num_images)
        context = Context(opening, self._model.new_kv())
        context.adapter = command.adapter
        session = self._table.open(
            command.session_id,
            context,
            ttl_s=asked.ttl_s,
            metadata=dict(asked.metadata),
            origin=message.request_id,
            ephemeral=message.ephemeral,
        )
        session.yields = isinstance(command, Respond) and command.generates
        return session

    def _prompt(self, message: Submit, command: Prompt) -> None:
        if message.is_retry and self._idempotency.answered_before(message):
            return
        if message.creates_session:
            self._admit(self._new_session(message, command), command, message, command.media)
            return
        session = self._session(command.session_id)
        if command.turn is not None and self._idempotency.reattach(session, command.turn, message):
            return
        self._check_media(command, message.attachments)
        check_command(command, self._model)
        if command.adapter not in (None, session.state.adapter):
            has = session.state.adapter
            raise InvalidRequest(
                f"the session has the adapter {has}, which stays"
                if has
                else "the session has no adapter",
                field="adapter",
            )
        media = self.uploads.find(session, command.media)
        self._core.quotas.check_turn(message, self._table)
        # A branch is made at last: one that was refused would stay.
        taker = session
        if isinstance(command, Respond):
            taker = self._responses.session_for(message, session, command)
        if taker is session:
            self._check_queue(session)
        self._admit(taker, command, message, media)

    def _check_queue(self, session: Session[Context]) -> None:
        waiting = len(prompts_of(session)) - 1  # one has its turn, or is next
        if waiting >= self._core.config.frontend.max_sequence_job_queue_size:
            raise QueueFull(
                f"this session's queue is full ({waiting} prompts, maxSequenceJobQueueSize);"
                " wait for an answer first",
                retry_after_s=1.0,
            )

    def _check_media(self, command: Open | Prompt, files: tuple[bytes, ...]) -> None:
        """Refuse media of another kind than the model's, and too many; `files` are of its kinds."""
        kinds = self._model.encoder.kinds if self._model.encoder else ()
        for field, named in (("images", command.images), ("audio", command.audio)):
            if named and field not in kinds:
                raise InvalidRequest(f"this model takes no {field}", field=field)
        if files and not kinds:
            raise InvalidRequest("this model takes no images", field="images")
        count, limit = len(command.media) + len(files), self._core.config.handler.media.max_images
        if count > limit:
            noun = " and ".join("clips" if kind == "audio" else kind for kind in kinds)
            raise InvalidRequest(f"{count} {noun}; a request takes at most {limit}", field=kinds[0])

    def _upload(self, message: Submit, command: Upload) -> None:
        if self._model.encoder is None:
            raise InvalidRequest("this model takes no images or audio", field="type")
        session = self._session(command.session_id)
        answer = self.uploads.receive(session, command, message.attachments)
        self._table.touch(session)
        self._outbox.answer(message.request_id, answer, session_id=session.session_id)

    def _admit(
        self,
        session: Session[Context],
        command: Open | Prompt,
        message: Submit,
        media: Items[Media],
    ) -> None:
        sequence = Sequence(
            session,
            command,
            self._core.clock.monotonic(),
            origin=message.request_id,
            creates_session=message.creates_session,
            ephemeral=message.ephemeral,
            replay=_replay(message),
            forked=session.session_id != message.command.session_id,
        )
        self._waiters.subscribe(sequence, message)
        self._turns.admit(sequence, media, message.attachments)

    def _continue(self, message: Submit, command: Continue) -> None:
        request_id = message.request_id
        session = self._session(command.session_id, in_turn=True)
        self._table.touch(session)
        turn, done, prompts = command.turn, len(session.state.turns), prompts_of(session)
        if turn <= done:
            record = session.state.turns[turn - 1]
            self._outbox.continued(request_id, session.session_id, record, command.after)
        elif turn <= done + len(prompts):
            patient = message.profile.pushes_to_grpc and command.wait_ms
            wait_s = command.wait_ms / 1000 if patient else _SHORT_WAIT_S
            self._waiters.wait(prompts[turn - done - 1], request_id, command.after, wait_s)
        elif session.state.failed is not None and session.state.failed[0] == turn:
            raise session.state.failed[1]
        else:
            raise TurnGap(f"there is no turn {turn} of this session", field="turn")

    def _cancel(self, request_id: str, session: Session[Context]) -> None:
        if not self._turns.cancel(session, request_id):
            answer = Cancelled(session.session_id, cancelled=False)
            self._outbox.answer(request_id, answer, session_id=session.session_id)

    def _close(self, message: Submit, command: Close) -> None:
        name, answer = command.session_id, partial(self._outbox.closed, message.request_id, command)
        if name is not None and command.erase and name not in self._table:
            self._persistence.erase(name, answer)
            return
        session = self._session(name)
        if self._turns.stop(session, message):
            self._table.close(session)
            self._persistence.ended(session, "closed", answer)


def _replay(message: Submit) -> tuple[Chosen, ...]:
    """Return the tokens that an engine that died had chosen."""
    if message.replay_logprobs:
        return tuple(Chosen(one.id, one.logprob, one.top) for one in message.replay_logprobs)
    return tuple(map(Chosen, message.replay))
