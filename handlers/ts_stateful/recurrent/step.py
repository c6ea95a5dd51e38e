"""A step of a sequence on its way."""

from __future__ import annotations

from msgspec import Struct

from ts_stateful.protocol.requests import Step
from ts_stateful.recurrent.batch import InputRow
from ts_stateful.recurrent.sequence import SequenceState
from ts_stateful.recurrent.step_records import Answered
from ts_stateful.sessions.session import Session

__all__ = ["PendingStep"]


class PendingStep(Struct, eq=False):
    """One step that was asked for; `request_ids` are all who wait for it.

    One that is `recorded` was answered so by an engine that is gone, and runs for its states alone.
    """

    session: Session[SequenceState]
    step: Step
    row: InputRow
    request_ids: tuple[str, ...] = ()
    raw: bool = False
    creates_session: bool = False
    recorded: Answered | None = None

    def come_next(self) -> None:
        """It is the next step of its sequence; one without a step begins with it."""
        state = self.session.state
        self.row.start = self.step.start or not state.num_steps
        self.row.lengths = state.lengths
