"""Recurrent and convolution states of one session, after several numbers of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["KEPT", "Recurrent", "States"]

KEPT = 4  # states that are kept beside the last ones, and those at the beginning of a step

States = Sequence[Tensor | None]


class Recurrent:
    """The states after the last computed token, and after earlier ones to which the session may go back.

    States cannot be cut as keys and values can. They are the tensors of all recurrent layers, None for one that a model does
    not use, and are never changed: a step makes new ones.
    """

    def __init__(self) -> None:
        self._states: dict[int, States] = {}
        self._kept: list[int] = []  # the latest last
        self._began = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all states."""
        return sum(
            part.nbytes for states in self._states.values() for part in states if part is not None
        )

    def after(self, length: int) -> States | None:
        """Return the states after `length` tokens, None before the first.

        Raises:
            KeyError: they are not here.
        """
        return self._states[length] if length else None

    def put(self, length: int, states: States) -> None:
        """Add the states after the last computed token, in place of the last ones unless these are kept."""
        kept = {
            at: self._states[at] for at in sorted({*self._kept, self._began}) if 0 < at < length
        }
        self._states = {**kept, length: states}

    def begin(self) -> None:
        """Keep the last states until the next step begins: this one may fail after some of its passes."""
        self._began = self.length

    def keep(self, length: int) -> None:
        """Keep the last states: the session may go back to them."""
        if length in self._states and length not in self._kept:
            self._kept = [*self._kept, length][-KEPT:]
            stay = {*self._kept, self._began}
            self._states = {at: states for at, states in self._states.items() if at in stay}

    def snapshot(self) -> dict[int, States]:
        """Return all states by their numbers of tokens, ascending."""
        return dict(sorted(self._states.items()))

    def restore(self, length: int, states: States) -> None:
        """Add states after more tokens than all others, and keep them."""
        self.put(length, states)
        self.keep(length)

    def cut(self, length: int) -> int:
        """Drop the states after more than `length` tokens; return the number of tokens of the last ones that are left."""
        self._states = {at: states for at, states in self._states.items() if at <= length}
        self._kept = [at for at in self._kept if at <= length]
        self._began = min(self._began, self.length)
        return max(self._states, default=0)

    def copy(self, length: int) -> Recurrent:
        """Return the last states up to `length` tokens; the tensors are shared, because they never change."""
        copy = Recurrent()
        last = max((at for at in self._states if at <= length), default=0)
        if last:
            copy._states = {last: self._states[last]}
        return copy

    @property
    def length(self) -> int:
        """The number of tokens of the last states."""
        return max(self._states, default=0)

    def on(self, device: torch.device) -> Recurrent:
        """Return a copy on a device."""
        copy = Recurrent()
        copy._kept = list(self._kept)
        copy._states = {
            at: [None if part is None else part.to(device) for part in states]
            for at, states in self._states.items()
        }
        return copy
