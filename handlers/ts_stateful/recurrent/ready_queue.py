"""The order among sequences: a pass takes the step that has waited longest, and those that can run beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from itertools import islice

import torch

from ts_stateful.config.schema import StateConfig
from ts_stateful.recurrent.batch import Grouping
from ts_stateful.recurrent.sequence import SequenceState
from ts_stateful.recurrent.slots import SlotPool
from ts_stateful.recurrent.step import PendingStep
from ts_stateful.sessions.session import Session
from ts_stateful.sessions.table import SessionTable

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """The next step of every sequence that has one, those that have waited longest first."""

    def __init__(
        self, settings: StateConfig, table: SessionTable[SequenceState], pool: SlotPool
    ) -> None:
        self._max_rows = settings.max_rows
        self._grouping = Grouping(settings)
        self._table = table
        self._pool = pool
        self._steps: dict[str, PendingStep] = {}

    def __len__(self) -> int:
        """Return the number of sequences with a step that waits."""
        return len(self._steps)

    def add(self, step: PendingStep) -> None:
        """Add the next step of a sequence that has none here."""
        session_id = step.session.session_id
        assert session_id not in self._steps
        self._steps[session_id] = step

    def remove(self, session: Session[SequenceState]) -> None:
        """Remove a sequence's step, if it has one here."""
        self._steps.pop(session.session_id, None)

    def next_steps(self) -> list[PendingStep]:
        """Return the steps of the next pass; they stay here until they are removed. Without memory some have no slot."""
        most = min(self._max_rows, self._pool.max_slots)
        steps = list(islice(self._alike(), most))
        with contextlib.suppress(torch.OutOfMemoryError, MemoryError):
            self._give_slots(steps)
        return steps

    def _alike(self) -> Iterable[PendingStep]:
        """Return the steps that can run together with the one that has waited longest, in their order."""
        steps, key = self._steps.values(), self._grouping.key
        if not steps or self._grouping.is_trivial:
            return steps
        wanted = key(next(iter(steps)).row)
        return (step for step in steps if key(step.row) == wanted)

    def _give_slots(self, steps: list[PendingStep]) -> None:
        """Give all of these slots: free ones, else those of idle sessions, else of others, least recently used first."""
        missing = [step.session.state for step in steps if not step.session.state.has_slot]
        excess = len(missing) - self._pool.num_free
        if excess > 0:
            running = {id(step.session) for step in steps}
            held = [s for s in self._table if s.state.has_slot and id(s) not in running]
            held.reverse()  # the table begins with those used last
            for session in sorted(held, key=lambda s: s.busy)[:excess]:
                session.state.to_host()
                self._table.tally.changed(session)
        for state in missing:
            state.to_device()
