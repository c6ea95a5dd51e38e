"""A step of a sequence from its request to its answer."""

from __future__ import annotations

from msgspec import Struct

from ts_stateful.protocol.events import Encoding
from ts_stateful.protocol.requests import Step
from ts_stateful.recurrent.batch import InputRow
from ts_stateful.recurrent.sequence import SequenceState
from ts_stateful.recurrent.step_records import Answered
from ts_stateful.sessions.session import Session

__all__ = ["PendingStep"]


class PendingStep(Struct, eq=False):
    """A step, and the requests that wait for it.

    A `recorded` one was answered so by an engine that died; it runs again only for its states.
    """

    session: Session[SequenceState]
    step: Step
    row: InputRow
    request_ids: tuple[str, ...] = ()
    encoding: Encoding = Encoding.JSON
    creates_session: bool = False
    recorded: Answered | None = None

    def come_next(self) -> None:
        """Prepare the row for the next pass; the first step of a sequence begins it."""
        state = self.session.state
        self.row.start = self.step.start or not state.num_steps
        self.row.lengths = state.lengths
