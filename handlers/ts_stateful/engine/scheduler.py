"""Which of the running turns does what in the next step.

Owns the order of work: decode first, prefill beside it in chunks, in turn. Knows only how many tokens a sequence still has to
prefill; it is tested on plain integers.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, Protocol, TypeVar

__all__ = ["Schedulable", "Scheduler", "Step"]


class Schedulable(Protocol):
    """A running turn, as the scheduler sees it."""

    @property
    def num_to_prefill(self) -> int:
        """Tokens that must be computed before the first token can be generated; 0 while it decodes."""
        ...


SequenceT = TypeVar("SequenceT", bound=Schedulable)


class Step(NamedTuple, Generic[SequenceT]):
    """One step's work: one chunk of one prefill, and one token for every sequence that decodes."""

    prefill: SequenceT | None
    chunk: int
    decode: list[SequenceT]


class Scheduler(Generic[SequenceT]):
    """The running turns of an engine; `chunk` bounds the tokens prefilled between two decode steps."""

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk
        self._prefilling: deque[SequenceT] = deque()
        self._decoding: list[SequenceT] = []

    def __len__(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    def add(self, sequence: SequenceT) -> None:
        """Takes a turn that is ready to run."""
        self._prefilling.append(sequence)

    def remove(self, sequence: SequenceT) -> None:
        """Lets go of a turn, wherever it stands; one that is not here is no error."""
        if sequence in self._prefilling:
            self._prefilling.remove(sequence)
        if sequence in self._decoding:
            self._decoding.remove(sequence)

    def schedule(self) -> Step[SequenceT]:
        """The next step. Prefills take turns chunk by chunk, so that a short prompt never waits for a whole long one."""
        decode = list(self._decoding)
        if not self._prefilling:
            return Step(None, 0, decode)
        sequence = self._prefilling.popleft()
        chunk = min(self._chunk, sequence.num_to_prefill)
        if chunk == sequence.num_to_prefill:
            self._decoding.append(sequence)
        else:
            self._prefilling.append(sequence)
        return Step(sequence, chunk, decode)

    def check_integrity(self) -> None:
        """Asserts what must hold between any two steps."""
        assert not set(map(id, self._prefilling)) & set(map(id, self._decoding))
        assert all(sequence.num_to_prefill == 0 for sequence in self._decoding)
