"""The life of a turn: from admission to commit or roll-back."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from functools import partial

from ts_stateful.engine.core import EngineCore
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.history import Delta, Turn
from ts_stateful.language.conversation.turn import Sequence, TurnStatus
from ts_stateful.language.defects import turn_defect
from ts_stateful.language.encoders.loader import MediaFiles
from ts_stateful.language.grammar.compiler import GrammarCompiler
from ts_stateful.language.network.load import Model
from ts_stateful.language.persistence.persistence import NoPersistence
from ts_stateful.language.scheduler import Scheduler, budget_of
from ts_stateful.language.turns.implicit_sessions import ImplicitSessions
from ts_stateful.language.turns.inputs import TurnInputs
from ts_stateful.language.turns.kv_lending import lend_common, share_beginning
from ts_stateful.language.turns.outbox import TurnOutbox, usage_of
from ts_stateful.language.turns.preparation import Preparation, resume_reply
from ts_stateful.language.turns.waiters import Waiters
from ts_stateful.protocol.chat import Discard, Respond
from ts_stateful.protocol.errors import (
    SessionClosed,
    SessionMoved,
    SessionNotFound,
    StatefulError,
    TurnGap,
)
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Fork, Media, Prompt, Rewind
from ts_stateful.session_log.journal import Done
from ts_stateful.sessions.session import Session

__all__ = ["Turns"]


class Turns:
    """The turns of one engine: those that wait, those that the scheduler runs, those that are being written."""

    def __init__(
        self,
        core: EngineCore[Context],
        model: Model,
        persistence: NoPersistence,
        files: MediaFiles,
        grammars: GrammarCompiler,
    ) -> None:
        handler = core.config.handler
        self.scheduler = Scheduler[Sequence](budget_of(handler.prefill_chunk, model.device.type))
        self.outbox = TurnOutbox(core, model)
        self.waiters = Waiters(self.outbox, handler.reattach_sec)
        self.table = core.table
        self._core = core
        self._model = model
        self._persistence = persistence
        core.table.reserve = self.implicit = ImplicitSessions(core, model)
        self._inputs = TurnInputs(core, model, files, grammars, self.implicit)
        self._preparation = Preparation(core, model, self.implicit)

    def admit(self, sequence: Sequence, images: Items[Media], files: Items[bytes]) -> None:
        """Take a turn into its session; it runs when its images are there and the turns before it are done."""
        sequence.session.work.append(sequence)
        self._core.table.touch(sequence.session)
        self._persistence.recall(sequence.session, self._recalled)
        try:
            self._inputs.get(sequence, images, files, self._has_inputs)
        except Exception as error:  # a thread may not start, a library may raise anything
            self.fail(sequence, turn_defect(error, "getting what a turn needs"))

    def fail(self, sequence: Sequence, error: StatefulError) -> None:
        """Roll the turn back: the session stands where its last committed turn left it."""
        session, context = sequence.session, sequence.context
        lend_common(sequence, ends=True)
        if sequence.status in (TurnStatus.RUNNING, TurnStatus.COMMITTING):
            # Lent states may be of ids that are not in the log.
            context.kv.truncate(min(sequence.keep, self.implicit.valid(sequence)))
            context.failed = (sequence.number, error)
        self.scheduler.remove(sequence)
        self._leave(sequence)
        self.waiters.failed(sequence, error)
        if isinstance(error, SessionMoved):
            self._forget(session, error)
        elif sequence.creates_session and not context.turns:
            self._forget(session, SessionNotFound("the session could not be opened"))
        elif sequence.ephemeral:
            self.implicit.ended(sequence)
        elif sequence.forked and not any(isinstance(work.command, Prompt) for work in session.work):
            self._core.table.close(session)
            self._persistence.ended(session, "closed")
        self._persistence.became_idle()

    def finish(self, sequence: Sequence, reason: str) -> None:
        """End the turn as it stands. It is committed, and its last event sent, when its record is in the store."""
        lend_common(sequence, ends=True)
        self.scheduler.remove(sequence)
        try:
            turn = self._turn(sequence, reason) if isinstance(sequence.command, Prompt) else None
        except Exception as error:  # a tokenizer may raise anything
            self._recorded(sequence, None, turn_defect(error, "ending a turn"))
            return
        if turn is None:
            sequence.context.open(sequence.ids)
        sequence.status = TurnStatus.COMMITTING
        self._persistence.committed(sequence, turn, partial(self._recorded, sequence, turn))

    def cancel(self, session: Session[Context], request_id: str) -> bool:
        """End the turn in progress as it stands, and answer the request after that; return False if there is none."""
        running = session.work[0] if session.work else None
        if running is None or not isinstance(running.command, Prompt):
            return False
        self.waiters.wait_for_end(running, request_id)
        running.cancelled = True
        if running.status is TurnStatus.RUNNING:
            self.finish(running, "cancelled")
        return True

    def stop(self, session: Session[Context], follower: Submit) -> bool:
        """End all turns of a session. If one has to be written first, return False; `follower` is admitted after that."""
        if session.work and session.work[0].status is TurnStatus.COMMITTING:
            session.work[0].followers.append(follower)
            return False
        error = SessionClosed("the session was closed")
        for waiting in list(session.work)[1:]:
            self.fail(waiting, error)
        if session.work:
            running: Sequence = session.work[0]
            if isinstance(running.command, Prompt) and running.status is TurnStatus.RUNNING:
                running.followers.append(follower)
                self.finish(running, "cancelled")
                return False
            running.creates_session = running.forked = False  # closed, not: never opened
            self.fail(running, error)
        return True

    def tick(self) -> None:
        """Roll back turns that no client came back for, and drop what no request has continued."""
        self.implicit.expire()
        for sequence in self.waiters.tick():
            if sequence.ephemeral and sequence.status is TurnStatus.RUNNING:
                self.finish(sequence, "cancelled")  # its client may send what it has of the reply
            elif sequence.status not in (TurnStatus.COMMITTING, TurnStatus.DONE):
                # One that is done failed with another one.
                gone = TurnGap("the turn was rolled back: its client was gone for too long")
                self.fail(sequence, gone)

    def write_down(
        self,
        session: Session[Context],
        command: Fork | Rewind | Discard,
        write: Callable[[Done], None],
        done: Done,
    ) -> None:
        """Write something that is no turn; what comes next in the session waits until it is `done`."""
        now = self._core.clock.monotonic()
        sequence = Sequence(session, command, now, status=TurnStatus.COMMITTING)
        session.work.append(sequence)
        write(partial(self._written, sequence, done))

    def _written(self, sequence: Sequence, done: Done, error: StatefulError | None) -> None:
        done(error)
        self._leave(sequence)
        if isinstance(error, SessionMoved):
            self._forget(sequence.session, error)
        elif error is not None and isinstance(sequence.command, Fork):
            missing = SessionNotFound("the session could not be opened")
            self._forget(sequence.session, error if error.retryable else missing)
        self._resume_followers(sequence)

    def _recorded(self, sequence: Sequence, turn: Turn | None, error: StatefulError | None) -> None:
        try:
            if error is None:
                self._commit(sequence, turn)
            else:
                self.fail(sequence, error)
        except Exception as failure:  # a library may raise anything
            reason = turn_defect(failure, "committing a turn")
            # The session may have a part of the turn, so it ends here. What the store has of it is whole, and goes on.
            self._forget(sequence.session, reason)
        self._resume_followers(sequence)

    def _resume_followers(self, sequence: Sequence) -> None:
        for message in sequence.followers:
            self._core.waiting.resume(message)

    def _forget(self, session: Session[Context], error: StatefulError) -> None:
        for other in list(session.work):
            other.status = TurnStatus.DONE
            self.waiters.failed(other, error)
        session.work.clear()
        self._core.table.forget(session)

    def _commit(self, sequence: Sequence, turn: Turn | None) -> None:
        session, context = sequence.session, sequence.context
        if sequence.past is not None:
            context.go_back(sequence.past)
        if turn is not None:
            context.commit(turn)
        if context.kv.per_prompt:
            context.to_record()
        self._preparation.prefixes.learn(sequence)
        context.kv.truncate(sequence.num_kept(len(context.log)))
        context.images += sequence.images
        context.remember(sequence.urls)
        sequence.images = []
        self._leave(sequence)
        self.waiters.finished(sequence, turn)
        if sequence.ephemeral:
            self.implicit.ended(sequence)
        elif isinstance(sequence.command, Respond):
            self.implicit.noted(session)
        self._persistence.became_idle()

    def _turn(self, sequence: Sequence, reason: str) -> Turn:
        extension, reply, text = sequence.extension, sequence.reply, ""
        assert extension is not None
        assert reply is not None
        messages = sequence.messages
        if sequence.generates:
            text = reply.finish()
            message = self._model.text.reply_message(text, sequence.parsing, sequence.origin)
            ids, dialogue = sequence.ids[sequence.num_prompt :], sequence.base.dialogue
            delta = self._model.text.committed(
                dialogue, messages, extension, message, ids[: reply.num_kept], reply.rest
            )
        else:
            keep, ids, num_images = extension.keep, extension.ids, len(sequence.images)
            delta = Delta(
                keep, tuple(ids), messages=messages, num_images=num_images, has_reply=False
            )
        return Turn(
            number=sequence.number,
            text=text,
            finish_reason="stop" if reply.stopped or not delta.has_reply else reason,
            usage=usage_of(sequence),
            timing=self.outbox.timing_of(sequence),
            delta=delta,
            origin=sequence.origin,
            logprobs=tuple(sequence.logprobs[: reply.num_kept]),
            parsing=sequence.parsing if delta.has_reply else None,
            note=sequence.note,
        )

    def _has_inputs(self, sequence: Sequence, error: StatefulError | None) -> None:
        if error is not None:
            self.fail(sequence, error)
            return
        sequence.status = TurnStatus.WAITING
        self._advance(sequence)

    def _recalled(self, session: Session[Context]) -> None:
        """Go on with a session whose KV states were read, or could not be."""
        if session.work:
            self._advance(session.work[0])

    def _advance(self, sequence: Sequence) -> None:
        """Start the turn if it is the next of its session and has what it needs."""
        is_next = sequence.status is TurnStatus.WAITING and sequence.session.work[0] is sequence
        if not is_next or sequence.context.incoming:
            return
        sequence.started_at = self._core.clock.monotonic()
        try:
            self._start(sequence)
        except StatefulError as error:
            self.fail(sequence, error)
        except Exception as error:  # a template or a tokenizer may raise anything
            self.fail(sequence, turn_defect(error, "starting a turn"))

    def _start(self, sequence: Sequence) -> None:
        self._preparation.prepare(sequence)
        self._core.quotas.spend(sequence.session.owner, sequence.num_new)
        sequence.status = TurnStatus.RUNNING
        stopped = resume_reply(sequence, self._model.eos_ids)
        self.waiters.started(sequence)
        if sequence.cancelled:
            self.finish(sequence, "cancelled")
        elif stopped is not None:
            self.finish(sequence, stopped)
        elif not (sequence.generates or sequence.num_new):
            self.finish(sequence, "stop")  # an opening without a token
        else:
            share_beginning(sequence, self.scheduler, self._model.media_tokens)
            self.scheduler.add(sequence)

    def _leave(self, sequence: Sequence) -> None:
        sequence.status = TurnStatus.DONE
        self._core.table.touch(sequence.session)  # the idle time begins when the work ends
        work = sequence.session.work
        was_first = work[0] is sequence
        work.remove(sequence)
        if was_first:
            sequence.context.unseen = {}
        if was_first and not sequence.context.incoming:
            sequence.context.reserved = 0
        if was_first and work:
            self._core.queue.put(partial(self._advance, work[0]))
