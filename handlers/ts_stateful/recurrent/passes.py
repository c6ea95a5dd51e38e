"""One pass of the model for the next steps of several sequences; states change only where a step succeeded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ts_stateful.config.schema import StateConfig
from ts_stateful.protocol.declarations import WhenFull
from ts_stateful.protocol.errors import ContextTooLong
from ts_stateful.recurrent.batch import InputRow, Results, Shaper
from ts_stateful.recurrent.output_rows import OutputRows
from ts_stateful.recurrent.program import Program
from ts_stateful.recurrent.slots import SlotPool, free_dim

__all__ = ["Passes", "Stepped"]


class Stepped(NamedTuple):
    """The results of a pass: the outputs, the new lengths of each row's states and, by the numbers of rows, why
    states stay as they were. `Passes.keep` writes the new `states` into the `slots`, of which the last may be fillers.
    """

    outputs: Sequence[OutputRows]
    lengths: Sequence[Sequence[int | None]]
    errors: Mapping[int, ContextTooLong]
    states: Sequence[Tensor]
    slots: Tensor


class Passes:
    """Runs passes of one model."""

    def __init__(self, program: Program, settings: StateConfig, pool: SlotPool) -> None:
        self._program = program
        self._settings = settings
        self._pool = pool
        self._shaper = Shaper(settings, pool.device)

    def run(self, rows: Sequence[InputRow], slots: Sequence[int]) -> Stepped:
        """Step the sequences in these slots, whose rows must have the same key (see `Grouping`).

        Rows with `InputRow.start` begin with the initial states. Raises what the model raises. No state has changed
        until `keep` is called.
        """
        fresh = [slot for slot, row in zip(slots, rows, strict=True) if row.start]
        if fresh:
            self._pool.reset(fresh)
        num_rows = self._settings.max_rows if self._settings.fixed_rows else len(rows)
        index = self._pool.index([*slots, *[slots[-1]] * (num_rows - len(slots))])
        gathered = self._pool.gather(index, self._shaper.longest(rows))
        states = self._shaper.blanked(gathered, rows)
        outputs, new = self._program(self._shaper.inputs(rows, num_rows), states)
        results = self._shaper.results(rows, outputs, new)
        grown = [self._grown(number, results, len(rows)) for number in range(len(new))]
        lengths = [of_rows for _, of_rows in grown]
        return Stepped(
            results.outputs,
            _by_row(lengths, len(rows)),
            self._errors(lengths),
            [tensor for tensor, _ in grown],
            index,
        )

    def keep(self, stepped: Stepped) -> None:
        """Write the new states of a pass, but those of rows with an error."""
        index, new, num_rows = stepped.slots, stepped.states, len(stepped.lengths)
        if stepped.errors or num_rows < len(index):
            good = [row for row in range(num_rows) if row not in stepped.errors]
            if not good:
                return
            rows = torch.tensor(good, device=index.device)
            index = index[rows]
            new = [
                tensor.index_select(state.rows_dim, rows)
                for state, tensor in zip(self._settings.states, new, strict=True)
            ]
        self._pool.scatter(index, new)

    def _errors(self, lengths: Sequence[list[int] | None]) -> dict[int, ContextTooLong]:
        """Return, by row, the first state that would grow too long."""
        errors: dict[int, ContextTooLong] = {}
        for state, of_rows in zip(self._settings.states, lengths, strict=True):
            for row, length in enumerate(of_rows or ()):
                if length > (state.max or 0) and row not in errors:
                    errors[row] = ContextTooLong(
                        f"the state {state.name} may not grow beyond {state.max}"
                    )
        return errors

    def _grown(
        self, number: int, results: Results, num_rows: int
    ) -> tuple[Tensor, list[int] | None]:
        """Return a new state and the lengths of its rows, cut to what may be kept."""
        state, tensor = self._settings.states[number], results.states[number]
        if state.free_dim is None or state.max is None:
            return tensor, None
        dim = free_dim(state)
        lengths = results.state_lengths[number] or [tensor.shape[dim]] * num_rows
        if state.when_full is WhenFull.DROP_OLDEST and max(lengths) > state.max:
            tensor = torch.cat(
                [
                    _last(tensor.narrow(state.rows_dim, row, 1), dim, length, state.max)
                    for row, length in enumerate(lengths)
                ],
                state.rows_dim,
            )
            lengths = [min(length, state.max) for length in lengths]
        return tensor.narrow(dim, 0, min(tensor.shape[dim], state.max)), lengths


def _by_row(
    lengths: Sequence[Sequence[int] | None], num_rows: int
) -> Sequence[Sequence[int | None]]:
    """Transpose lengths: from states of rows to rows of states."""
    if not any(lengths):
        return [[None] * len(lengths)] * num_rows  # nothing grows
    columns = [[None] * num_rows if of_rows is None else of_rows for of_rows in lengths]
    return list(zip(*columns, strict=True))


def _last(row: Tensor, dim: int, length: int, most: int) -> Tensor:
    """Return the last `most` of the first `length` values, in a room of `most`."""
    kept = min(length, most)
    tail = row.narrow(dim, length - kept, kept)
    if kept == most:
        return tail
    room = list(row.shape)
    room[dim] = most - kept
    return torch.cat([tail, tail.new_zeros(room)], dim)
