"""The life of a step: from the end of its sequence's queue to its answer.

Owns the order of steps within a sequence, and what a step does to it. Which request wants which step is `requests`' business;
knows nothing of models or stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ts_stateful.config.schema import StateConfig
from ts_stateful.protocol.errors import OutOfMemory, SessionNotFound, StatefulError
from ts_stateful.recurrent.lookup import Sequences, gap
from ts_stateful.recurrent.outbox import StepOutbox
from ts_stateful.recurrent.passes import Stepped
from ts_stateful.recurrent.persistence import StepPersistence
from ts_stateful.recurrent.ready_queue import ReadyQueue
from ts_stateful.recurrent.sequence import SequenceState
from ts_stateful.recurrent.slots import SlotPool
from ts_stateful.recurrent.step import PendingStep
from ts_stateful.recurrent.step_records import Answered
from ts_stateful.sessions.session import Session
from ts_stateful.sessions.table import SessionTable

__all__ = ["Steps"]

_Session = Session[SequenceState]


class Steps:
    """The steps of one engine. The first one in the `work` of a sequence is in line for a pass, or being written."""

    def __init__(
        self,
        settings: StateConfig,
        table: SessionTable[SequenceState],
        pool: SlotPool,
        sequences: Sequences,
        outbox: StepOutbox,
        persistence: StepPersistence,
    ) -> None:
        self._table = table
        self._sequences = sequences
        self._outbox = outbox
        self._persistence = persistence
        self._line = ReadyQueue(settings, table, pool)

    def __len__(self) -> int:
        """Sequences with a step that waits."""
        return len(self._line)

    def add(self, job: PendingStep) -> None:
        """The last step of its sequence, as things stand."""
        work = job.session.work
        work.append(job)
        if len(work) == 1:
            self._advance(job.session)

    def next_jobs(self) -> list[PendingStep]:
        """The jobs of the next pass, each with a slot; those for which there is no memory fail."""
        jobs = self._line.next_jobs()
        stuck = [job for job in jobs if not job.session.state.has_slot]
        for job in stuck:
            self.fail(job, OutOfMemory("the device has no memory left for this step"))
        return [job for job in jobs if job not in stuck] if stuck else jobs

    def finish(self, jobs: Sequence[PendingStep], stepped: Stepped) -> None:
        """A pass has run: each step is answered, and its sequence goes on from there, when it is written down."""
        done = []
        for row, (job, lengths) in enumerate(zip(jobs, stepped.lengths, strict=True)):
            if row in stepped.errors:
                self.fail(job, stepped.errors[row])
                continue
            state = job.session.state
            state.lengths = lengths
            state.num_steps += 1
            self._table.touch(job.session)
            if job.recorded is None:
                done.append((row, job))
            else:
                self._repeated(job, job.recorded)
        answers = self._outbox.answers(done, stepped.outputs)
        for (_, job), answered in zip(done, answers, strict=True):
            if job.session.state.place is None:
                self._answer(job, answered)
            else:
                self._line.remove(job.session)
                written = partial(self._written, job, answered)
                self._persistence.write(job.session, answered, written, job.row)

    def fail(self, job: PendingStep, error: StatefulError) -> None:
        """The step is refused: its sequence stands where the last one has left it."""
        session = job.session
        self._table.touch(session)
        if job.recorded is not None:
            self.lose(session, error)
            self._persistence.release(session.session_id, error)
            return
        self._refuse(job, error)
        self._advance(session)

    def adopt(self, session: _Session, *, in_use: bool) -> None:
        """Takes in a sequence from the store; what it has to do comes before the requests that wait for it."""
        self._sequences.check_memory()
        self._table.adopt(session, in_use=in_use)
        if session.work:
            self._advance(session)

    def lose(self, session: _Session, error: StatefulError) -> None:
        """A sequence cannot go on as it is here; whoever asks for it next gets what the store has."""
        self.refuse_all(session, error)
        self._table.forget(session)

    def refuse_all(self, session: _Session, error: StatefulError) -> None:
        """All steps of a sequence that are not answered yet are refused."""
        self._line.remove(session)
        for job in session.work:
            for request_id in job.request_ids:
                self._outbox.refuse(request_id, error, session.session_id)
        session.work.clear()

    def _refuse(self, job: PendingStep, error: StatefulError) -> None:
        session = job.session
        self._leave(job)
        for request_id in job.request_ids:
            self._outbox.refuse(request_id, error, session.session_id)
        if job.creates_session and not session.state.num_steps:
            # Those that wait were meant to follow this one: alone they would be answered wrongly.
            self.refuse_all(session, SessionNotFound("the sequence could not be begun"))
            self._table.forget(session)

    def _written(self, job: PendingStep, answered: Answered, error: StatefulError | None) -> None:
        session = job.session
        if not session.work or session.work[0] is not job:
            return  # it was closed meanwhile, and they were told
        if error is not None:
            self.lose(session, error)
        else:
            self._answer(job, answered)

    def _answer(self, job: PendingStep, answered: Answered) -> None:
        session = job.session
        session.state.last_answer = answered.repeatable
        self._leave(job)
        if job.step.end:
            self._end(session)
        else:
            self._advance(session)
        self._outbox.send(job.request_ids, session.session_id, answered)

    def _repeated(self, job: PendingStep, answered: Answered) -> None:
        """A step was run again for its states."""
        job.session.state.last_answer = answered.repeatable
        self._leave(job)
        self._advance(job.session)
        if not job.session.work:
            self._persistence.release(job.session.session_id)

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
        waiting[0].creates_session = True
        self._advance(following)

    def _leave(self, job: PendingStep) -> None:
        left = job.session.work.popleft()
        assert left is job
        self._line.remove(job.session)

    def _advance(self, session: _Session) -> None:
        """The first job of a session that fits behind the last one waits for the next pass; those before it do not fit."""
        while session.work and not self._fits(session.work[0]):
            pass

    def _fits(self, job: PendingStep) -> bool:
        state = job.session.state
        if job.step.start and state.num_steps:
            state.begin_anew()
            self._table.renew(job.session)
        number = state.num_steps + 1
        if job.step.turn not in (None, number):
            self._table.touch(job.session)
            self._refuse(job, gap(job.step.turn, number))
            return False
        job.come_next()
        self._line.add(job)
        return True
