"""The states of all sequences: stacked, one slot each.

Owns the memory of the states, in the layout in which the model takes them, and which slot is free. Knows nothing of sequences
or of when they run.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ts_stateful.config.schema import ConfigError
from ts_stateful.protocol.declarations import Declared, State
from ts_stateful.recurrent.program import torch_dtype

__all__ = ["SlotPool", "free_dim", "initial_states"]

_FIRST_SLOTS = 8


def free_dim(declared: Declared) -> int:
    """Return the model's dimension for the free one of a row, which there must be."""
    assert declared.free_dim is not None
    return declared.free_dim + (declared.free_dim >= declared.rows_dim)


def initial_states(states: Sequence[State], model_dir: Path) -> list[Tensor]:
    """Return what a sequence begins with: for each state a tensor of one row, in the model's layout.

    Raises:
        ConfigError: a file is missing, or its tensor is not what is declared.
    """
    return [_initial(state, model_dir) for state in states]


def _initial(state: State, model_dir: Path) -> Tensor:
    dtype, shape = torch_dtype(state.datatype), tuple(max(0, size) for size in state.shape)
    if state.initial_file is None:
        return torch.full(shape, state.initial, dtype=dtype).unsqueeze(state.rows_dim)
    where = f"handler.states: {state.name}.initialFile {state.initial_file}"
    try:
        with safe_open(model_dir / state.initial_file, "pt") as file:
            tensor: Tensor = file.get_tensor(state.name)
    except Exception as error:  # the library's own kinds, or the system's
        raise ConfigError(f"{where}: {error}") from error
    fits = len(tensor.shape) == len(state.shape) and all(
        declared in (-1, size) for declared, size in zip(state.shape, tensor.shape, strict=True)
    )
    free = state.free_dim
    if (
        not fits
        or tensor.dtype != dtype
        or (free is not None and tensor.shape[free] > (state.max or 0))
    ):
        raise ConfigError(
            f"{where} holds {tensor.dtype} of {list(tensor.shape)}; declared are"
            f" {state.datatype.value} and {list(state.shape)}"
        )
    return tensor.unsqueeze(state.rows_dim)


class SlotPool:
    """Slots for at most `max_slots` sequences; in a CPU's memory it grows by doubling.

    A growing state has room for all of its `max` in every slot. The sequence knows how much of it is used.
    """

    def __init__(
        self,
        states: Sequence[State],
        initial: Sequence[Tensor],
        device: torch.device,
        max_slots: int,
    ) -> None:
        self._states = states
        self.initial = [tensor.to(device) for tensor in initial]
        self.device = device
        self.max_slots = max_slots
        self._free: list[int] = []  # a heap
        self._num_slots = 0
        self._tensors = [self._room(state, 0) for state in states]
        # On a GPU the old and the new room would not fit beside each other when it grows for the last time.
        self._grow(max_slots if device.type == "cuda" else min(_FIRST_SLOTS, max_slots))

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return slot_bytes(self._states)

    @property
    def num_free(self) -> int:
        """Slots that `take` has left."""
        return len(self._free) + self.max_slots - self._num_slots

    def take(self) -> int:
        """Take the lowest free slot; there must be one (`num_free`)."""
        if not self._free:
            self._grow(min(2 * self._num_slots, self.max_slots))
        return heappop(self._free)

    def free(self, slot: int) -> None:
        """Free a slot."""
        heappush(self._free, slot)

    def index(self, slots: Sequence[int]) -> Tensor:
        """Return these slots as `gather` and `scatter` take them."""
        # torch.tensor reads a list element by element, ten times as slowly.
        return torch.frombuffer(array("q", slots), dtype=torch.int64).to(self.device)

    def gather(self, index: Tensor, lengths: Sequence[int | None]) -> list[Tensor]:
        """Copy the states in these slots as the model takes them; of a growing state the first `lengths[i]`."""
        return [
            self._part(number, length).index_select(self._states[number].rows_dim, index)
            for number, length in enumerate(lengths)
        ]

    def scatter(self, index: Tensor, new: Sequence[Tensor]) -> None:
        """Write the states of as many rows as there are slots; of a growing state what there is, from its beginning."""
        for number, tensor in enumerate(new):
            state = self._states[number]
            length = None if state.free_dim is None else tensor.shape[free_dim(state)]
            self._part(number, length).index_copy_(state.rows_dim, index, tensor)

    def reset(self, slots: Sequence[int]) -> None:
        """Write what a sequence begins with."""
        rows = len(slots)
        self.scatter(
            self.index(slots),
            [
                tensor.repeat_interleave(rows, state.rows_dim)
                for tensor, state in zip(self.initial, self._states, strict=True)
            ],
        )

    def initial_lengths(self) -> list[int | None]:
        """Return the lengths that a sequence begins with; None for a state that does not grow."""
        return [
            None if state.free_dim is None else tensor.shape[free_dim(state)]
            for tensor, state in zip(self.initial, self._states, strict=True)
        ]

    def keep(self, slot: int, lengths: Sequence[int | None]) -> list[Tensor]:
        """Copy the states in a slot to host memory; each has a dimension of 1 for its row."""
        return [tensor.to("cpu") for tensor in self.gather(self.index([slot]), lengths)]

    def restore(self, slot: int, kept: Sequence[Tensor]) -> None:
        """Write what `keep` returned into a slot."""
        self.scatter(self.index([slot]), [tensor.to(self.device) for tensor in kept])

    def check_integrity(self) -> None:
        """Assert what must hold between any two calls."""
        assert len(set(self._free)) == len(self._free)
        assert all(0 <= slot < self._num_slots for slot in self._free)
        assert self._num_slots <= self.max_slots

    def _part(self, number: int, length: int | None) -> Tensor:
        tensor, state = self._tensors[number], self._states[number]
        return tensor if length is None else tensor.narrow(free_dim(state), 0, length)

    def _grow(self, num_slots: int) -> None:
        new = [self._room(state, num_slots) for state in self._states]  # or nothing changes
        for state, old, room in zip(self._states, self._tensors, new, strict=True):
            room.narrow(state.rows_dim, 0, self._num_slots).copy_(old)
        self._tensors = new
        self._free = [*self._free, *range(self._num_slots, num_slots)]
        heapify(self._free)
        self._num_slots = num_slots

    def _room(self, state: State, num_slots: int) -> Tensor:
        shape = [(state.max or 0) if size < 0 else size for size in state.shape]
        shape.insert(state.rows_dim, num_slots)
        return torch.empty(shape, dtype=torch_dtype(state.datatype), device=self.device)


def slot_bytes(states: Sequence[State]) -> int:
    """Return the bytes of the states of one sequence, at their largest."""
    return sum(
        state.num_elements * (state.max or 1) * torch_dtype(state.datatype).itemsize
        for state in states
    )
