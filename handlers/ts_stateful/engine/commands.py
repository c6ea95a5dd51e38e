"""Requests against an engine: what each type asks for, and who waits for which turn.

Owns the rules of turn numbers, queues, `continue` and detached turns. Knows nothing of forward passes: it asks the engine to
admit, finish or fail a turn.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from ts_stateful.answers import Cancelled, Closed, HelloAnswer, ServerLimits, SessionInfo
from ts_stateful.config import Config, Profile
from ts_stateful.engine.context import Context
from ts_stateful.engine.outbox import Outbox
from ts_stateful.engine.sequence import Sequence, Status, Subscriber, Waiter
from ts_stateful.errors import InvalidRequest, QueueFull, SessionClosed, SessionNotFound, TurnGap
from ts_stateful.events import Describe, Submit
from ts_stateful.protocol import Cancel, Close, Continue, Hello, Info, Open, Prompt
from ts_stateful.sessions.session import Session

if TYPE_CHECKING:
    from ts_stateful.engine.engine import Engine

__all__ = ["Commands"]

# A `continue` in the continuous and sequence profiles waits for the next token, not longer.
_SHORT_WAIT_S = 0.010


class Commands:
    """The requests of one engine that are not answered yet."""

    def __init__(
        self, engine: Engine, config: Config, outbox: Outbox, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._config = config
        self._outbox = outbox
        self._clock = clock
        self._started_at = clock()
        self._requests: dict[str, Sequence] = {}
        self._unfinished: set[Sequence] = set()

    def handle(self, message: Submit) -> None:
        """Takes a request; raises a `StatefulError` where it is refused."""
        command = message.command
        if isinstance(command, Hello):
            self._outbox.answer(message.request_id, self._hello())
        elif isinstance(command, Describe):
            self._outbox.answer(message.request_id, self._describe())
        elif isinstance(command, Open):
            self._open(message, command)
        elif isinstance(command, Prompt):
            self._prompt(message, command)
        else:
            session = self._session(command.session_id)
            if isinstance(command, Continue):
                self._continue(message.request_id, session, command)
            elif isinstance(command, Cancel):
                self._cancel(message.request_id, session)
            elif isinstance(command, Close):
                self._close(message.request_id, session)
            elif isinstance(command, Info):
                self._outbox.answer(
                    message.request_id, self._info(session), session_id=session.session_id
                )

    def drop(self, request_id: str) -> None:
        """Forgets who asked; a turn that nobody waits for any more goes on for `reattachSec`."""
        sequence = self._requests.pop(request_id, None)
        if sequence is not None:
            sequence.subscribers = [s for s in sequence.subscribers if s.request_id != request_id]
            sequence.waiters = [w for w in sequence.waiters if w.request_id != request_id]
            self._mark_orphan(sequence)

    def tick(self) -> None:
        """Rolls back turns that nobody came back for; answers `continue`s that have waited enough."""
        now = self._clock()
        for sequence in list(self._unfinished):
            orphaned = sequence.orphaned_at
            if orphaned is not None and now - orphaned >= self._config.handler.reattach_sec:
                self._engine.fail(sequence, SessionNotFound("its client did not come back"))
                continue
            for waiter in [w for w in sequence.waiters if now >= w.deadline]:
                self._answer_waiter(sequence, waiter)

    def next_deadline(self) -> float | None:
        """The clock's time at which `tick` has something to do, or None."""
        reattach_s = self._config.handler.reattach_sec
        orphans = (s.orphaned_at + reattach_s for s in self._unfinished if s.orphaned_at is not None)
        waiters = (waiter.deadline for s in self._unfinished for waiter in s.waiters)
        return min(itertools.chain(orphans, waiters), default=None)

    def started(self, sequence: Sequence) -> None:
        """The turn runs: clients that pull have their first answer and come back by `continue`."""
        for subscriber in [s for s in sequence.subscribers if s.pull]:
            sequence.subscribers.remove(subscriber)
            self._requests.pop(subscriber.request_id, None)
        self._mark_orphan(sequence)

    def progressed(self, sequence: Sequence) -> None:
        """The reply may have grown: `continue`s that have waited for it are answered."""
        num_chars = len(sequence.text)
        for waiter in [w for w in sequence.waiters if num_chars > w.after]:
            self._answer_waiter(sequence, waiter)

    def forget(self, sequence: Sequence) -> None:
        """The turn has ended and everybody was told."""
        self._unfinished.discard(sequence)
        for request in (*sequence.subscribers, *sequence.waiters):
            self._requests.pop(request.request_id, None)

    def check_number(self, asked: int | None, number: int) -> None:
        """Raises `TurnGap` unless a prompt's own `turn` is the one that comes next."""
        if asked is not None and asked != number:
            raise TurnGap(f"turn {asked} was asked for, but turn {number} is next", field="turn")

    def _session(self, session_id: str | None) -> Session[Context]:
        if session_id is None:
            raise InvalidRequest("name the session, in the header or here", field="session_id")
        session: Session[Context] = self._engine.table.get(session_id)
        return session

    def _open(self, message: Submit, command: Open) -> None:
        self._check_images(command, message)
        self._admit(self._new_session(message, command), command, message, opens=True)

    def _prompt(self, message: Submit, command: Prompt) -> None:
        self._check_images(command, message)
        if message.opens:
            self._admit(self._new_session(message, command), command, message, opens=True)
            return
        session = self._session(command.session_id)
        if command.turn is not None and self._reattach(session, command, message):
            return
        waiting = sum(1 for work in session.work if work.status is not Status.RUNNING)
        limit = self._config.frontend.max_sequence_job_queue_size
        if session.busy and waiting >= limit:
            raise QueueFull(
                f"{waiting} prompts of this session wait, which is maxSequenceJobQueueSize",
                retry_after_s=1.0,
            )
        self._admit(session, command, message, opens=False)

    def _check_images(self, command: Open | Prompt, message: Submit) -> None:
        count = len(command.images) + len(message.attachments)
        limit = self._config.handler.media.max_images
        if count and self._engine.model.vision is None:
            raise InvalidRequest("this model takes no images", field="images")
        if count > limit:
            raise InvalidRequest(f"{count} images; at most {limit} a request", field="images")

    def _new_session(self, message: Submit, command: Open | Prompt) -> Session[Context]:
        if command.session_id is None:
            raise InvalidRequest("name the session", field="session_id")
        asked = command if isinstance(command, Open) else Open()
        num_images = len(asked.images) + (len(message.attachments) if asked is command else 0)
        dialogue = self._engine.model.text.begin(asked.system, num_images)
        session: Session[Context] = self._engine.table.open(
            command.session_id,
            Context(dialogue, self._engine.model.device),
            ttl_s=asked.ttl_s,
            metadata=dict(asked.metadata),
        )
        return session

    def _admit(
        self, session: Session[Context], command: Open | Prompt, message: Submit, *, opens: bool
    ) -> None:
        sequence = Sequence(session, command, self._clock(), opens=opens)
        self._unfinished.add(sequence)
        self._subscribe(sequence, message, command)
        self._engine.table.touch(session)
        self._engine.admit(sequence, command.images, message.attachments)

    def _subscribe(self, sequence: Sequence, message: Submit, command: Open | Prompt) -> Subscriber:
        stream = isinstance(command, Prompt) and command.stream and not message.pull
        subscriber = Subscriber(message.request_id, stream, message.pull, sent=message.skip)
        sequence.subscribers.append(subscriber)
        sequence.orphaned_at = None
        self._requests[message.request_id] = sequence
        return subscriber

    def _reattach(self, session: Session[Context], command: Prompt, message: Submit) -> bool:
        """Answers a retried turn from its record, or attaches it to the turn in progress or in the queue."""
        turn = command.turn
        assert turn is not None
        if turn <= len(session.turns):
            stream = command.stream and not message.pull
            subscriber = Subscriber(message.request_id, stream, message.pull, message.skip)
            self._outbox.replayed(subscriber, session.session_id, session.turns[turn - 1])
            return True
        prompts = [work for work in session.work if isinstance(work.command, Prompt)]
        ahead = turn - len(session.turns) - 1
        if ahead > len(prompts):
            self.check_number(turn, len(session.turns) + len(prompts) + 1)
        if ahead == len(prompts):
            return False
        sequence = prompts[ahead]
        subscriber = self._subscribe(sequence, message, command)
        if sequence.status is Status.RUNNING:
            self._outbox.accepted(sequence, subscriber)
            self._outbox.progress(sequence)
            self.started(sequence)
        return True

    def _continue(self, request_id: str, session: Session[Context], command: Continue) -> None:
        turn, after = command.turn, command.after
        self._engine.table.touch(session)
        if turn <= len(session.turns):
            record = session.turns[turn - 1]
            self._outbox.continued(request_id, session.session_id, record, after)
            return
        prompts = [work for work in session.work if isinstance(work.command, Prompt)]
        if turn > len(session.turns) + len(prompts):
            if session.state.failed is not None and session.state.failed[0] == turn:
                raise session.state.failed[1]
            raise TurnGap(f"there is no turn {turn} of this session", field="turn")
        sequence = prompts[turn - len(session.turns) - 1]
        waits_s = _SHORT_WAIT_S
        if self._config.frontend.profile is Profile.ASYNC and command.wait_ms:
            waits_s = command.wait_ms / 1000
        waiter = Waiter(request_id, after, self._clock() + waits_s)
        sequence.waiters.append(waiter)
        sequence.orphaned_at = None
        self._requests[request_id] = sequence
        self.progressed(sequence)

    def _answer_waiter(self, sequence: Sequence, waiter: Waiter) -> None:
        sequence.waiters.remove(waiter)
        self._requests.pop(waiter.request_id, None)
        self._outbox.partial(waiter.request_id, sequence, waiter.after)
        self._mark_orphan(sequence)

    def _mark_orphan(self, sequence: Sequence) -> None:
        if not sequence.subscribers and not sequence.waiters:
            sequence.orphaned_at = self._clock()

    def _cancel(self, request_id: str, session: Session[Context]) -> None:
        sequence = session.work[0] if session.work else None
        cancels = sequence is not None and isinstance(sequence.command, Prompt)
        number = len(session.turns) + 1 if cancels else None
        if sequence is not None and cancels:
            sequence.cancelled = True
            if sequence.status is Status.RUNNING:
                self._engine.finish(sequence, "cancelled")
        self._outbox.answer(
            request_id,
            Cancelled(session.session_id, cancels, number),
            session_id=session.session_id,
        )

    def _close(self, request_id: str, session: Session[Context]) -> None:
        running = session.work[0] if session.work else None
        for waiting in list(session.work)[1:]:
            self._engine.fail(waiting, SessionClosed("the session was closed"))
        if running is not None:
            if isinstance(running.command, Prompt) and running.status is Status.RUNNING:
                self._engine.finish(running, "cancelled")
            else:
                running.opens = False  # closed, which is not the same as never opened
                self._engine.fail(running, SessionClosed("the session was closed"))
        self._engine.table.close(session)
        self._outbox.answer(
            request_id, Closed(session.session_id), session_id=session.session_id, closed=True
        )

    def _info(self, session: Session[Context]) -> SessionInfo:
        now, context = self._clock(), session.state
        return SessionInfo(
            session_id=session.session_id,
            age_s=round(now - session.opened_at, 3),
            idle_s=round(now - session.last_used, 3),
            expires_at=self._outbox.rfc3339(session.expires_at),
            turns=len(session.turns),
            tokens=len(context.log),
            cached_tokens=min(context.kv.length, len(context.log)),
            images=len(context.images),
            residency=context.residency.value,
            device_bytes=context.device_bytes,
            host_bytes=context.host_bytes,
            running=session.busy,
            waiting=max(0, len(session.work) - 1),
        )

    def _hello(self) -> HelloAnswer:
        frontend, media = self._config.frontend, self._config.handler.media
        limits = ServerLimits(
            max_sessions=frontend.max_sessions,
            idle_s=frontend.idle_s,
            lifetime_s=frontend.lifetime_s,
            queued_prompts=frontend.max_sequence_job_queue_size,
            context_tokens=self._engine.model.context_tokens,
            images=media.max_images if self._engine.model.vision else 0,
            image_bytes=media.max_bytes,
            image_pixels=media.max_pixels,
        )
        return HelloAnswer(
            server="torchserve-stateful",
            version=_package_version(),
            profile=frontend.profile.value,
            model=self._engine.model.name,
            limits=limits,
        )

    def _describe(self) -> dict[str, Any]:
        engine = self._engine
        return {
            "engine_pid": os.getpid(),
            "uptime_s": round(self._clock() - self._started_at, 3),
            "sessions_open": len(engine.table),
            "sessions_max": self._config.frontend.max_sessions,
            "turns_in_progress": len(self._unfinished),
            "device_bytes": engine.table.device_bytes,
            "host_bytes": engine.table.host_bytes,
            "tokens_generated": engine.num_tokens,
            "images_encoded": engine.model.vision.num_encoded if engine.model.vision else 0,
        }


def _package_version() -> str:
    try:
        return version("torchserve-stateful")
    except PackageNotFoundError:  # in an archive the package is a plain folder
        return "unpackaged"
