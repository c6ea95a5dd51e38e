"""Requests against the engine of a model with recurrent state: what each type asks for.

Owns the order of steps within a sequence, and where a sequence begins and ends. Knows nothing of models or stores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ts_stateful.answering import Answering
from ts_stateful.answers import Closed, Forked, Opened, Usage, encode
from ts_stateful.config import Config
from ts_stateful.errors import (
    InvalidRequest,
    QueueFull,
    SessionClosed,
    SessionNotFound,
    StatefulError,
)
from ts_stateful.events import Submit
from ts_stateful.protocol import Close, Fork, Hello, Info, Open, Step
from ts_stateful.sessions.session import Session
from ts_stateful.sessions.table import SessionTable
from ts_stateful.state.commits import Answered
from ts_stateful.state.durability import Durability
from ts_stateful.state.line import Line
from ts_stateful.state.passes import Stepped
from ts_stateful.state.pool import Pool
from ts_stateful.state.reports import hello, info
from ts_stateful.state.sequence import SequenceState
from ts_stateful.state.sequences import Sequences, gap
from ts_stateful.state.steps import Answers, Fed, Job

__all__ = ["Requests"]

_Session = Session[SequenceState]


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
        durability: Durability,
        clock: Callable[[], float],
        resubmit: Callable[[Submit], None],
    ) -> None:
        assert config.state is not None
        self._config = config
        self._model_name = model_name
        self._table = table
        self._answering = answering
        self._answers = answers
        self._durability = durability
        self._clock = clock
        self._resubmit = resubmit
        self._sequences = Sequences(config.state, table, pool, durability)
        self._line = Line(config.state, table, pool)

    def __len__(self) -> int:
        """Sequences with a step that waits."""
        return len(self._line)

    def handle(self, message: Submit) -> None:
        """Takes a request of a client."""
        command = message.command
        if self._durability.holds(message):
            return
        answered = self._durability.answered(message)
        if answered is not None:
            self._answers.send([message.request_id], command.session_id or "", answered)
        elif isinstance(command, Step):
            self._step(message, command)
        elif isinstance(command, Open):
            self._open(message, command)
        elif isinstance(command, Close):
            self._close(message, command.session_id)
        elif isinstance(command, Info):
            self._info(message.request_id, self._sequences.get(command.session_id))
        elif isinstance(command, Fork):
            self._fork(message, command)
        elif isinstance(command, Hello):
            greeting = hello(self._config, self._model_name, message.profile)
            self._answering.answer(message.request_id, greeting)
        else:
            raise InvalidRequest(
                "this model has recurrent states: it takes `step`, `open`, `close`, `fork`, `info`, `hello`",
                field="type",
            )

    def next_jobs(self) -> list[Job]:
        """The jobs of the next pass, each with a slot."""
        return self._line.next_jobs()

    def finish(self, job: Job, stepped: Stepped) -> None:
        """The step has run; it is answered, and its sequence goes on from there, when it is written down."""
        session, state = job.session, job.session.state
        fed = Fed(job.inputs, job.shapes, job.row.start, job.step.end)
        state.lengths = stepped.lengths
        state.num_steps += 1
        self._table.touch(session)
        if job.recorded is not None:
            self._repeated(job, job.recorded)
            return
        job.has_run = True
        self._line.remove(session)
        until = self._answering.unix_time(session.expires_at) if job.opens else None
        answered = self._answers.make(job, stepped, until)
        self._durability.write(session, answered, partial(self._written, job, answered), fed)

    def fail(self, job: Job, error: StatefulError) -> None:
        """The step is refused: its sequence stands where the last one has left it."""
        session = job.session
        self._table.touch(session)
        if job.recorded is not None:
            self._lose(session, error)
            self._durability.release(session.session_id, error)
            return
        self._leave(job)
        for request_id in job.request_ids:
            self._answering.refuse(request_id, error, session.session_id)
        if job.opens and not session.state.num_steps:
            # Those that wait were meant to follow this one: alone they would be answered wrongly.
            self._refuse_waiting(session, SessionNotFound("the sequence could not be begun"))
            self._table.forget(session)

    def adopt(self, session: _Session) -> None:
        """Takes in a sequence from the store; what it has to do comes before the requests that wait for it."""
        self._sequences.check_memory()
        self._table.adopt(session)
        self._advance(session)

    def _written(self, job: Job, answered: Answered, error: StatefulError | None) -> None:
        session = job.session
        if not session.work or session.work[0] is not job:
            return  # it was closed meanwhile, and they were told
        if error is not None:
            self._lose(session, error)
            return
        session.state.last_answer = answered.repeatable
        self._leave(job)
        if job.step.end:
            self._end(session)
        self._answers.send(job.request_ids, session.session_id, answered)

    def _repeated(self, job: Job, answered: Answered) -> None:
        """A step was run again for its states."""
        job.session.state.last_answer = answered.repeatable
        self._leave(job)
        if not job.session.work:
            self._durability.release(job.session.session_id)

    def _lose(self, session: _Session, error: StatefulError) -> None:
        """A sequence cannot go on as it is here; whoever asks for it next gets what the store has."""
        self._refuse_waiting(session, error)
        self._table.forget(session)

    def _step(self, message: Submit, command: Step) -> None:
        session, opens = self._sequences.of_step(message, command)
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
        raise gap(command.turn, state.num_steps + 1)

    def _open(self, message: Submit, command: Open) -> None:
        if command.system is not None or command.images or message.attachments:
            field = "system" if command.system is not None else "images"
            raise InvalidRequest("a model with recurrent states takes none", field=field)
        assert command.session_id is not None
        session = self._sequences.begin(command.session_id, command.ttl_s, dict(command.metadata))
        answer = Opened(session.session_id, self._answering.rfc3339(session.expires_at), Usage())
        self._answer_opened(message.request_id, session, answer)

    def _fork(self, message: Submit, command: Fork) -> None:
        source = self._sequences.get(command.session_id)
        if self._durability.behind(source, partial(self._resubmit, message)):
            return  # its last step may have to be taken back
        session = self._sequences.fork(source, command)
        answer = Forked(
            session.session_id,
            self._answering.rfc3339(session.expires_at),
            Usage(),
            forked_from=source.session_id,
            turn=session.state.num_steps,
        )
        self._answer_opened(message.request_id, session, answer)

    def _answer_opened(self, request_id: str, session: _Session, answer: Opened) -> None:
        until = self._answering.unix_time(session.expires_at)
        answered = Answered((request_id,), encode(answer), opened_until=until)

        def written(error: StatefulError | None) -> None:
            if error is None:
                self._answers.send([request_id], session.session_id, answered)
                return
            self._answering.refuse(request_id, error, session.session_id)
            if session.session_id in self._table:
                self._lose(session, error)

        self._durability.write(session, answered, written)

    def _close(self, message: Submit, session_id: str | None) -> None:
        try:
            session = self._sequences.get(session_id)
        except SessionNotFound:
            if not message.again:  # else it was closed by the engine that is gone
                raise
            self._closed(message.request_id, session_id)
            return
        self._refuse_waiting(session, SessionClosed("the session was closed"))
        self._table.close(session)
        self._durability.removed(session, partial(self._closed, message.request_id, session_id))

    def _closed(self, request_id: str, session_id: str | None) -> None:
        answer = Closed(session_id or "")
        self._answering.answer(request_id, answer, session_id=session_id, closed=True)

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
        following = self._sequences.begin(session.session_id)
        following.state.place = session.state.place
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
        if not session.work or session in self._line or session.work[0].has_run:
            return
        job, state = session.work[0], session.state
        if job.step.start and state.num_steps:
            state.begin_anew()
            self._table.renew(session)
        self._line.add(job)
        number = state.num_steps + 1
        if job.step.turn not in (None, number):
            self.fail(job, gap(job.step.turn, number))
