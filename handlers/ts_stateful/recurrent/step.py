"""A step of a sequence from its request to its answer."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from msgspec import Struct, msgpack

from ts_stateful.protocol.events import Encoding
from ts_stateful.protocol.requests import Step
from ts_stateful.recurrent.batch import InputRow
from ts_stateful.recurrent.sequence import SequenceState
from ts_stateful.recurrent.step_records import Answered
from ts_stateful.sessions.session import Session

__all__ = ["PendingStep", "identity"]


class PendingStep(Struct, eq=False):
    """A step, and the requests that wait for it.

    `other_ids` has the client's id for those that repeat it under another one. A `recorded` one was answered so by an engine
    that died; it runs again only for its states.
    """

    session: Session[SequenceState]
    command: Step
    row: InputRow
    request_ids: tuple[str, ...] = ()
    encoding: Encoding = Encoding.JSON
    creates_session: bool = False
    recorded: Answered | None = None
    other_ids: dict[str, str | None] | None = None

    @property
    def identity(self) -> bytes:
        """See the function `identity`."""
        return identity(self.command, self.row.inputs, self.row.shapes)

    def come_next(self) -> None:
        """Prepare the row for the next pass; the first step of a sequence begins it."""
        state = self.session.state
        self.row.start = self.command.start or not state.num_steps
        self.row.lengths = state.lengths


def identity(step: Step, inputs: Sequence[bytes], shapes: Sequence[tuple[int, ...]]) -> bytes:
    """Return a digest that a numbered step with START or END shares only with its repetitions; empty for any other step.

    The next sequence of the id may have a step of the same number, but with other inputs.
    """
    if step.turn is None or not (step.start or step.end):
        return b""
    parts = (step.turn, step.start, step.end, [bytes(data) for data in inputs], list(shapes))
    return blake2b(msgpack.encode(parts), digest_size=16).digest()
