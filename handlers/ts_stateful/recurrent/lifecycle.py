"""The life of a step: from its sequence's queue to its answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from ts_stateful.config.schema import StateConfig
from ts_stateful.engine.core import EngineCore
from ts_stateful.protocol.errors import OutOfMemory, SessionExpired, SessionNotFound, StatefulError
from ts_stateful.recurrent.lookup import Sequences, gap
from ts_stateful.recurrent.outbox import StepOutbox
from ts_stateful.recurrent.passes import Stepped
from ts_stateful.recurrent.persistence import NoStepPersistence
from ts_stateful.recurrent.ready_queue import ReadyQueue
from ts_stateful.recurrent.sequence import SequenceState
from ts_stateful.recurrent.step import PendingStep
from ts_stateful.recurrent.step_records import Answered
from ts_stateful.sessions.session import Session

__all__ = ["StepLifecycle"]

_Session = Session[SequenceState]


class StepLifecycle:
    """The steps of one engine. The first one in the `work` of a sequence waits for a pass, or is being written."""

    def __init__(
        self,
        core: EngineCore[SequenceState],
        settings: StateConfig,
        sequences: Sequences,
        outbox: StepOutbox,
        persistence: NoStepPersistence,
    ) -> None:
        self._core = core
        self._table = core.table
        self._sequences = sequences
        self._outbox = outbox
        self._persistence = persistence
        self._ready = ReadyQueue(settings, core.table, sequences.pool)

    def __len__(self) -> int:
        """Return the number of sequences with a step that waits."""
        return len(self._ready)

    def add(self, step: PendingStep) -> None:
        """Add a step to the end of its sequence's queue."""
        work = step.session.work
        work.append(step)
        if len(work) == 1:
            self._advance(step.session)

    def next_steps(self) -> list[PendingStep]:
        """Return the steps of the next pass, each with a slot; those without memory fail."""
        steps = self._ready.next_steps()
        stuck = [step for step in steps if not step.session.state.has_slot]
        for step in stuck:
            self.fail(step, OutOfMemory("the device has no memory left for this step"))
        return [step for step in steps if step not in stuck] if stuck else steps

    def answers(self, steps: Sequence[PendingStep], stepped: Stepped) -> Sequence[Answered]:
        """Return the answers to the steps of a pass that have succeeded and are not answered yet."""
        done = [
            (row, step)
            for row, step in enumerate(steps)
            if row not in stepped.errors and step.recorded is None
        ]
        return self._outbox.answers(done, stepped.outputs)

    def finish(
        self, steps: Sequence[PendingStep], stepped: Stepped, answers: Sequence[Answered]
    ) -> None:
        """Take the results of a pass and its `answers`; each is sent when its step is written."""
        done = []
        for row, (step, lengths) in enumerate(zip(steps, stepped.lengths, strict=True)):
            if row in stepped.errors:
                self.fail(step, stepped.errors[row])
                continue
            state = step.session.state
            state.lengths = lengths
            state.num_steps += 1
            if step.recorded is None:
                done.append(step)
            else:
                self._repeated(step, step.recorded)
        for step, answered in zip(done, answers, strict=True):
            if step.session.state.log_position is None:
                self._answer(step, answered)
            else:
                self._ready.remove(step.session)
                written = partial(self._written, step, answered)
                self._persistence.write(step.session, answered, written, step.row)

    def fail(self, step: PendingStep, error: StatefulError) -> None:
        """Refuse a step: its sequence stands where the last step left it."""
        session = step.session
        if step.recorded is not None:
            self.lose(session, error)
            self._core.waiting.release(session.session_id, error=error)
            return
        if session.state.num_steps:
            self._refuse(step, error)
        else:
            self._not_begun(step, error)
        self._advance(session)

    def adopt(self, session: _Session, *, in_use: bool) -> bool:
        """Take in a sequence from the store and begin to replay its steps; return False if its time is up."""
        self._sequences.check_memory()
        try:
            self._table.adopt(session, in_use=in_use)
        except SessionExpired:  # its entries are not removed yet
            return False
        self._sequences.ended.forget(session.session_id)
        if session.work:
            self._advance(session)
        return True

    def lose(self, session: _Session, error: StatefulError) -> None:
        """Forget a sequence that cannot go on here; the next request for it gets what the store has."""
        self.refuse_all(session, error)
        self._table.forget(session)

    def refuse_all(self, session: _Session, error: StatefulError) -> None:
        """Refuse all steps of a sequence that are not answered yet."""
        while session.work:
            self._refuse(session.work[0], error)

    def _refuse(self, step: PendingStep, error: StatefulError) -> None:
        self._leave(step)
        self._send_refusals([step], error)

    def _send_refusals(self, steps: Sequence[PendingStep], error: StatefulError) -> None:
        for step in steps:
            for request_id in step.request_ids:
                self._outbox.refuse(request_id, error, step.session.session_id)

    def _not_begun(self, step: PendingStep, error: StatefulError) -> None:
        """Refuse a first step. The next START that waits is now the first one; if there is none, there is no sequence."""
        session, work = step.session, step.session.work
        self._leave(step)
        following = list(takewhile(lambda one: not one.command.start, work))
        for one in following:
            self._leave(one)

        def refuse(outcome: Any = None) -> None:
            # Those that follow would be answered wrongly without this one.
            self._send_refusals([step], error)
            self._send_refusals(following, SessionNotFound("the sequence could not be begun"))

        if work:
            work[0].creates_session = step.creates_session
            refuse()
            return
        self._table.forget(session)
        if step.creates_session:
            refuse()
        else:  # the store has the sequence before it, or the one that was opened: a crash must not bring it back
            self._persistence.ended(session, "closed", refuse)

    def _written(self, step: PendingStep, answered: Answered, error: StatefulError | None) -> None:
        session = step.session
        if not session.work or session.work[0] is not step:
            return  # it was closed meanwhile, and its requests were refused
        if error is not None:
            self.lose(session, error)
        else:
            self._answer(step, answered)

    def _answer(self, step: PendingStep, answered: Answered) -> None:
        session = step.session
        session.state.last_answer = answered.repeatable
        self._leave(step)
        if step.command.end:
            self._end(session, answered)
        elif session.work:
            self._advance(session)
        if step.other_ids:
            self._outbox.send_all(step, answered)
        else:
            self._outbox.send(step.request_ids, session.session_id, answered)

    def _repeated(self, step: PendingStep, answered: Answered) -> None:
        """Take a step that was run again for its states."""
        step.session.state.last_answer = answered.repeatable
        self._leave(step)
        self._advance(step.session)
        if not step.session.work:
            self._core.waiting.release(step.session.session_id)

    def _end(self, session: _Session, answered: Answered) -> None:
        """Close a sequence after its last step; the steps that wait belong to the next sequence of this id."""
        waiting = list(session.work)
        session.work.clear()
        self._ready.remove(session)
        self._table.close(session)
        self._sequences.ended.add(session.session_id, answered)
        if not waiting:
            return
        following = self._sequences.begin(session.session_id)
        following.state.log_position = session.state.log_position
        for step in waiting:
            step.session = following
            following.work.append(step)
        waiting[0].creates_session = True
        self._advance(following)

    def _leave(self, step: PendingStep) -> None:
        left = step.session.work.pop(0)
        assert left is step
        self._ready.remove(step.session)
        self._table.touch(step.session)  # the idle time begins when the work ends

    def _advance(self, session: _Session) -> None:
        """Put the first step that follows the last one into the next pass; refuse those before it."""
        while session.work and not self._fits(session.work[0]):
            pass

    def _fits(self, step: PendingStep) -> bool:
        state = step.session.state
        number = 1 if step.command.start else state.num_steps + 1
        if step.command.turn not in (None, number):
            error = gap(step.command.turn, number)
            if step.creates_session:
                self._not_begun(step, error)
            else:
                self._refuse(step, error)
            return False
        if step.command.start and state.num_steps:
            state.reset()
            self._table.renew(step.session)
        step.come_next()
        self._ready.add(step)
        return True
