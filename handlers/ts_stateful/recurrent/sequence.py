"""A sequence between its steps, with its states in a slot or in host memory."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ts_stateful.recurrent.slots import SlotPool
from ts_stateful.recurrent.step_records import Answered, SequencePosition
from ts_stateful.sessions.session import Residency
from ts_stateful.sessions.shared import Shareable

__all__ = ["SequenceState"]


class SequenceState:
    """A `SessionState`. Nothing computes recurrent states again, so the lowest tier is host memory.

    `num_steps` counts the steps since the beginning; `lengths` are those of the states, None for one that does not grow.
    """

    # One is touched for every row of a pass, after a model that has filled the processor's caches.
    __slots__ = ("_kept", "_pool", "_slot", "last_answer", "lengths", "log_position", "num_steps")

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool
        self._slot: int | None = None
        self._kept: Sequence[Tensor] | None = None  # in host memory
        self.last_answer: Answered | None = None  # of the last step
        self.log_position: SequencePosition | None = None  # in the store, if there is one
        self.num_steps = 0
        self.lengths: Sequence[int | None] = pool.initial_lengths()

    @property
    def residency(self) -> Residency:
        """See `SessionState`; a sequence without a step has nothing anywhere."""
        return Residency.HOST if self._kept is not None else Residency.DEVICE

    @property
    def device_bytes(self) -> int:
        """See `SessionState`."""
        return 0 if self._slot is None else self._pool.slot_bytes

    @property
    def host_bytes(self) -> int:
        """See `SessionState`."""
        return 0 if self._kept is None else sum(tensor.nbytes for tensor in self._kept)

    @property
    def shared(self) -> Sequence[Shareable]:
        """Nothing."""
        return ()

    @property
    def has_slot(self) -> bool:
        """Return True if the next step can run where the states are."""
        return self._slot is not None

    @property
    def slot(self) -> int:
        """Return its slot; it must have one."""
        assert self._slot is not None
        return self._slot

    def to_device(self) -> None:
        """Take a slot, of which one must be free, and put the states there. If that fails, they stay where they are."""
        assert self._slot is None
        self._slot = self._pool.take()
        if self._kept is not None:
            try:
                self._pool.restore(self._slot, self._kept)
            except BaseException:
                self._leave_slot()
                raise
            self._kept = None

    def to_host(self) -> None:
        """See `SessionState`."""
        if self._slot is not None:
            if self.num_steps:
                self._kept = self._pool.keep(self._slot, self.lengths)
            self._leave_slot()

    def to_record(self) -> None:
        """Move the states to host memory: they cannot be computed from a record."""
        self.to_host()

    def reset(self) -> None:
        """Forget all steps."""
        self._kept = None
        self.last_answer = None
        self.num_steps = 0
        self.lengths = self._pool.initial_lengths()

    def fork(self) -> SequenceState:
        """Return another sequence that stands where this one does; its states are in host memory until its first step."""
        made = SequenceState(self._pool)
        made.num_steps, made.lengths = self.num_steps, list(self.lengths)
        made.last_answer = self.last_answer
        if self._slot is not None and self.num_steps:
            made._kept = self._pool.keep(self._slot, self.lengths)
        elif self._kept is not None:
            made._kept = [tensor.clone() for tensor in self._kept]
        return made

    def copied(self) -> Sequence[Tensor]:
        """Return the states as `restore` takes them, in host memory. There must have been a step."""
        if self._slot is not None:
            return self._pool.keep(self._slot, self.lengths)
        assert self._kept is not None
        return self._kept

    def restore(
        self, states: Sequence[Tensor], num_steps: int, lengths: Sequence[int | None]
    ) -> None:
        """Continue from the states that were `copied` after a step."""
        self._kept = list(states)
        self.num_steps, self.lengths = num_steps, lengths

    def release(self) -> None:
        """See `SessionState`."""
        self._kept = None
        if self._slot is not None:
            self._leave_slot()

    def _leave_slot(self) -> None:
        assert self._slot is not None
        self._pool.free(self._slot)
        self._slot = None
