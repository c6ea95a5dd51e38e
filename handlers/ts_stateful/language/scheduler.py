"""The work of the next step: decode first, chunks of prompts beside it under a budget of tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from typing import Generic, Protocol, TypeVar

__all__ = ["Chunk", "Schedulable", "Scheduler", "budget_of"]

# Tokens of prompts in a step, by the kind of device. Launching a pass takes a GPU's host 25 to 50 ms, however few they are, in
# which an H200 computes some 1,000 of a 7B model.
_BUDGETS = {"cpu": 256, "cuda": 1024}
_IDLE_BUDGETS = 2  # budgets that prompts may take while no stream has to wait for them
_LEAST = 16  # tokens, and parts of a budget: fewer are computed twice sooner than in another step


class Schedulable(Protocol):
    """A running turn, as the scheduler sees it."""

    @property
    def num_to_prefill(self) -> int:
        """Tokens that must be computed before the first token can be generated; 0 while it decodes."""

    def whole(self, count: int) -> int:
        """Return `count`, or more tokens if some of these can only be computed together with the next ones, or fewer."""

    def waits_for(self, others: Collection[object], least: int) -> bool:
        """Return True if one of these computes `least` of its next tokens too, and will lend them."""


SequenceT = TypeVar("SequenceT", bound=Schedulable)

Chunk = tuple[SequenceT, int]
"""A sequence's part of a step: so many of its next tokens."""


def budget_of(asked: int | None, device: str) -> int:
    """Return the tokens of prompts in a step on a kind of device; None asks for the usual number."""
    return asked or _BUDGETS.get(device, _BUDGETS["cpu"])


class Scheduler(Generic[SequenceT]):
    """The running turns of an engine; `budget` bounds the tokens of prompts beside a step's decode tokens."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.least = max(_LEAST, budget // _LEAST)  # tokens that are worth a step of waiting
        self._prefilling: list[SequenceT] = []  # the oldest first
        self._decoding: list[SequenceT] = []

    def __len__(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    def __iter__(self) -> Iterator[SequenceT]:
        return chain(self._prefilling, self._decoding)

    def add(self, sequence: SequenceT) -> None:
        """Take a turn that is ready to run."""
        self._prefilling.append(sequence)

    def remove(self, sequence: SequenceT) -> None:
        """Remove a turn, if it is here."""
        for group in (self._prefilling, self._decoding):
            if sequence in group:
                group.remove(sequence)

    @property
    def has_prompts(self) -> bool:
        """True if the next step computes chunks of prompts."""
        return bool(self._prefilling)

    def schedule(self) -> list[Chunk[SequenceT]]:
        """Return the next step: a token for every turn that decodes, then chunks of prompts.

        Half of the budget belongs to the oldest prompt, so that none starves. The rest goes to the shortest ones first: a
        short prompt does not wait for a long one, and as many as fit are prefilled together. One waits for what another, which
        is before it in this order, computes for both. So the oldest never waits.
        """
        step = [(sequence, 1) for sequence in self._decoding]
        if self._prefilling:
            step += self._share(self._budget if step else _IDLE_BUDGETS * self._budget)
        return step

    def _share(self, budget: int) -> list[Chunk[SequenceT]]:
        oldest, ready = self._prefilling[0], list[SequenceT]()
        for sequence in (oldest, *sorted(self._prefilling, key=lambda one: one.num_to_prefill)):
            if not sequence.waits_for(ready, self.least):
                ready.append(sequence)
        counts = dict.fromkeys(self._prefilling, 0)
        counts[oldest] = min(oldest.num_to_prefill, -(-budget // 2))
        left = budget - counts[oldest]
        for sequence in ready[1:]:
            more = min(left, sequence.num_to_prefill - counts[sequence])
            counts[sequence] += more
            left -= more
        chunks = [(sequence, sequence.whole(count)) for sequence, count in counts.items()]
        for sequence, count in chunks:
            if count == sequence.num_to_prefill:
                self._prefilling.remove(sequence)
                self._decoding.append(sequence)
        return [(sequence, count) for sequence, count in chunks if count]

    def check_integrity(self) -> None:
        """Assert what must hold between any two steps."""
        assert not set(self._prefilling) & set(self._decoding)
        assert all(sequence.num_to_prefill > 0 for sequence in self._prefilling)
        assert all(sequence.num_to_prefill == 0 for sequence in self._decoding)
