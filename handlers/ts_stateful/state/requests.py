"""Requests against the engine of a model with recurrent state: what each type asks for.

Owns the order of steps within a sequence, and where a sequence begins and ends. Knows nothing of the
model.
"""

from __future__ import annotations

from collections.abc import Callable

from ts_stateful.answering import Answering
from ts_stateful.answers import Closed, Forked, Opened, Usage
from ts_stateful.config import Config
from ts_stateful.errors import (
    InvalidRequest,
    OutOfMemory,
    QueueFull,
    SessionClosed,
    SessionExpired,
    SessionNotFound,
    StatefulError,
    TurnGap,
)
from ts_stateful.events import Submit
from ts_stateful.protocol import Close, Fork, Hello, Info, Open, Step
from ts_stateful.sessions.session import Session
from ts_stateful.sessions.table import SessionTable
from ts_stateful.state.line import Line
from ts_stateful.state.passes import Stepped
from ts_stateful.state.pool import Pool
from ts_stateful.state.reports import hello, info
from ts_stateful.state.sequence import SequenceState
from ts_stateful.state.steps import Answers, Job

__all__ = ["Requests"]

_Session = Session[SequenceState]
_AGAIN = "; send `start`: true to begin anew"


class Requests:
    """Takes the requests of one engine; raises a `StatefulError` where one is refused."""

    def __init__(
        self,
        config: Config,
        model_name: str,
        table: SessionTable[SequenceState],
        pool: Pool,
        answering: Answering,
        answers: Answers,
        clock: Callable[[], float],
    ) -> None:
        assert config.state is not None
        self._config = config
        self._settings = config.state
        self._model_name = model_name
        self._table = table
        self._pool = pool
        self._answering = answering
        self._answers = answers
        self._clock = clock
        self._line = Line(self._settings, table, pool)

    def __len__(self) -> int:
        """Sequences with a step that waits."""
        return len(self._line)

    def handle(self, message: Submit) -> None:
        """Takes a request of a client."""
        command = message.command
        if isinstance(command, Step):
            self._step(message, command)
        elif isinstance(command, Open):
            self._open(message, command)
        elif isinstance(command, Close):
            self._close(message.request_id, self._session(command.session_id))
        elif isinstance(command, Info):
            self._info(message.request_id, self._session(command.session_id))
        elif isinstance(command, Fork):
            self._fork(message.request_id, command)
        elif isinstance(command, Hello):
            self._answering.answer(message.request_id, hello(self._config, self._model_name))
        else:
            raise InvalidRequest(
                "this model has recurrent states: it takes `step`, `open`, `close`, `fork`, `info` and"
                " `hello`",
                field="type",
            )

    def next_jobs(self) -> list[Job]:
        """The jobs of the next pass, each with a slot."""
        return self._line.next_jobs()

    def finish(self, job: Job, stepped: Stepped) -> None:
        """The step has run, and its sequence goes on from there."""
        session, state = job.session, job.session.state
        state.lengths = stepped.lengths
        state.num_steps += 1
        self._table.touch(session)
        until = self._answering.unix_time(session.expires_at) if job.opens else None
        self._leave(job)
        if job.step.end:
            self._end(session)
        self._answers.send(job, stepped, until)

    def fail(self, job: Job, error: StatefulError) -> None:
        """The step is refused: its sequence stands where the last one has left it."""
        session = job.session
        self._table.touch(session)
        self._leave(job)
        for request_id in job.request_ids:
            self._answering.refuse(request_id, error, session.session_id)
        if job.opens and not session.state.num_steps:
            # Those that wait were meant to follow this one: alone they would be answered wrongly.
            self._refuse_waiting(session, SessionNotFound("the sequence could not be begun"))
            self._table.forget(session)

    def _session(self, session_id: str | None) -> _Session:
        if session_id is None:
            raise InvalidRequest("name the session, in the header or here", field="session_id")
        return self._table.get(session_id)

    def _step(self, message: Submit, command: Step) -> None:
        session, opens = self._session_of(message, command)
        job = Job(
            session,
            command,
            message.attachments,
            message.shapes,
            raw=message.raw,
            opens=opens,
            request_ids=[message.request_id],
        )
        if command.turn is not None and self._attached(session, command, message.request_id):
            return
        if len(session.work) > self._config.frontend.max_sequence_job_queue_size:
            raise QueueFull(
                f"{len(session.work) - 1} steps of this session are waiting, as many as"
                " maxSequenceJobQueueSize allows",
                retry_after_s=0.1,
            )
        session.work.append(job)
        self._advance(session)

    def _session_of(self, message: Submit, command: Step) -> tuple[_Session, bool]:
        """The session of a step, and whether it was opened just now."""
        session_id = command.session_id
        try:
            return self._session(session_id), False
        except SessionClosed:
            pass  # its end was said: whatever comes is a new beginning
        except SessionExpired as error:
            if not command.start:
                raise SessionExpired(error.message + _AGAIN) from None
        except SessionNotFound as error:
            if not (command.start or message.opens):
                raise SessionNotFound(error.message + _AGAIN, field=error.field) from None
        if command.turn not in (None, 1):
            raise _gap(command.turn, 1)
        assert session_id is not None
        return self._new_session(session_id), True

    def _new_session(
        self, session_id: str, ttl_s: float | None = None, metadata: dict[str, object] | None = None
    ) -> _Session:
        host_bytes = self._settings.host_cache_bytes
        if host_bytes is not None:
            most = self._pool.max_slots + host_bytes // max(1, self._pool.slot_bytes)
            if len(self._table) >= most:
                raise OutOfMemory(
                    "neither deviceCacheBytes nor hostCacheBytes has room for another sequence"
                )
        return self._table.open(
            session_id, SequenceState(self._pool), ttl_s=ttl_s, metadata=metadata
        )

    def _attached(self, session: _Session, command: Step, request_id: str) -> bool:
        """Whether a step of this number is there already, waiting or done; its answer then goes to this request too."""
        assert command.turn is not None
        for job in session.work:
            if job.step.turn == command.turn and job.step.start == command.start:
                job.request_ids.append(request_id)
                return True
        state = session.state
        if session.busy or command.start or command.turn == state.num_steps + 1:
            return False  # checked when it is its turn
        if command.turn == state.num_steps and state.last_answer is not None:
            self._answers.replay(request_id, session, state.last_answer)
            return True
        raise _gap(command.turn, state.num_steps + 1)

    def _open(self, message: Submit, command: Open) -> None:
        if command.system is not None or command.images or message.attachments:
            field = "system" if command.system is not None else "images"
            raise InvalidRequest("a model with recurrent states takes none", field=field)
        assert command.session_id is not None
        session = self._new_session(command.session_id, command.ttl_s, dict(command.metadata))
        answer = Opened(session.session_id, self._answering.rfc3339(session.expires_at), Usage())
        self._answer_opened(message.request_id, session, answer)

    def _fork(self, request_id: str, command: Fork) -> None:
        source = self._session(command.session_id)
        state = source.state
        assert command.new_session_id is not None
        if command.at_turn not in (None, state.num_steps):
            raise InvalidRequest("recurrent states cannot be cut back", field="at_turn")
        metadata = dict(source.metadata if command.metadata is None else command.metadata)
        session = self._new_session(command.new_session_id, command.ttl_s, metadata)
        session.state = state.fork()
        answer = Forked(
            session.session_id,
            self._answering.rfc3339(session.expires_at),
            Usage(),
            forked_from=source.session_id,
            turn=state.num_steps,
        )
        self._answer_opened(request_id, session, answer)

    def _answer_opened(self, request_id: str, session: _Session, answer: Opened) -> None:
        until = self._answering.unix_time(session.expires_at)
        self._answering.answer(
            request_id, answer, session_id=session.session_id, opened_until=until
        )

    def _close(self, request_id: str, session: _Session) -> None:
        self._refuse_waiting(session, SessionClosed("the session was closed"))
        self._table.close(session)
        self._answering.answer(
            request_id, Closed(session.session_id), session_id=session.session_id, closed=True
        )

    def _info(self, request_id: str, session: _Session) -> None:
        answer = info(session, self._answering, self._clock())
        self._answering.answer(request_id, answer, session_id=session.session_id)

    def _refuse_waiting(self, session: _Session, error: StatefulError) -> None:
        self._line.remove(session)
        for job in session.work:
            for request_id in job.request_ids:
                self._answering.refuse(request_id, error, session.session_id)
        session.work.clear()

    def _end(self, session: _Session) -> None:
        """Closes a sequence behind its last step; what waits there belongs to the next one of this id."""
        waiting = list(session.work)
        session.work.clear()
        self._line.remove(session)
        self._table.close(session)
        if not waiting:
            return
        following = self._new_session(session.session_id)
        for job in waiting:
            job.session = following
            following.work.append(job)
        waiting[0].opens = True
        self._advance(following)

    def _leave(self, job: Job) -> None:
        work = job.session.work
        assert work[0] is job
        work.popleft()
        self._line.remove(job.session)
        self._advance(job.session)

    def _advance(self, session: _Session) -> None:
        """The first job of a session waits for the next pass, unless it does not fit behind the last one."""
        if not session.work or session in self._line:
            return
        job, state = session.work[0], session.state
        if job.step.start and state.num_steps:
            state.begin_anew()
            self._table.renew(session)
        self._line.add(job)
        number = state.num_steps + 1
        if job.step.turn not in (None, number):
            self.fail(job, _gap(job.step.turn, number))


def _gap(asked: int | None, number: int) -> TurnGap:
    return TurnGap(f"turn {asked} was asked for, but turn {number} is next", field="turn")
