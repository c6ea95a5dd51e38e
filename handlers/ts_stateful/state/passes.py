"""One pass of the model for the next steps of several sequences.

Owns the way from rows and slots through the model back into the slots: states change only where the step has succeeded. Knows
nothing of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ts_stateful.config import StateConfig
from ts_stateful.declarations import WhenFull
from ts_stateful.errors import ContextTooLong
from ts_stateful.state.batch import Results, Row, Shaper
from ts_stateful.state.pool import Pool, model_dim
from ts_stateful.state.program import Program

__all__ = ["Passes", "Stepped"]


class Stepped(NamedTuple):
    """What a pass did for one row: the outputs `(…)` of that row on the host, and the new lengths of its states; or why its
    states stay as they were."""

    outputs: list[Tensor]
    lengths: list[int | None]
    error: ContextTooLong | None = None


class Passes:
    """Runs passes of one model."""

    def __init__(
        self, program: Program, settings: StateConfig, pool: Pool, device: torch.device
    ) -> None:
        self._program = program
        self._settings = settings
        self._pool = pool
        self._shaper = Shaper(settings, device)

    def run(self, rows: Sequence[Row], slots: Sequence[int]) -> list[Stepped]:
        """Steps the sequences in these slots, whose rows must have the same `Row.key`.

        Rows that begin (`Row.start`) begin with the initial states. Raises what the model raises; no state has changed then.
        """
        fresh = [slot for slot, row in zip(slots, rows, strict=True) if row.start]
        if fresh:
            self._pool.reset(fresh)
        num_rows = self._settings.max_rows if self._settings.fixed_rows else len(rows)
        taken = [*slots, *[slots[-1]] * (num_rows - len(slots))]
        longest = [
            None if None in lengths else max(length or 0 for length in lengths)
            for lengths in zip(*(row.lengths for row in rows), strict=True)
        ]
        states = self._shaper.blanked(self._pool.gather(taken, longest), rows)
        outputs, new = self._program(self._shaper.inputs(rows, num_rows), states)
        return self._commit(rows, slots, self._shaper.results(rows, outputs, new))

    def _commit(self, rows: Sequence[Row], slots: Sequence[int], results: Results) -> list[Stepped]:
        grown = [self._grown(number, results, len(rows)) for number in range(len(results.states))]
        errors = [
            next(
                (
                    ContextTooLong(f"the state {state.name} may not grow beyond {state.max}")
                    for state, (_, lengths) in zip(self._settings.states, grown, strict=True)
                    if lengths is not None and lengths[row] > (state.max or 0)
                ),
                None,
            )
            for row in range(len(rows))
        ]
        self._scatter(slots, [tensor for tensor, _ in grown], errors)
        outputs = self._outputs(results, len(rows))
        return [
            Stepped(
                [column[row] for column in outputs],
                [None if lengths is None else lengths[row] for _, lengths in grown],
                errors[row],
            )
            for row in range(len(rows))
        ]

    def _grown(
        self, number: int, results: Results, num_rows: int
    ) -> tuple[Tensor, list[int] | None]:
        """A new state and the lengths of its rows, cut to what may be kept of it."""
        state, tensor = self._settings.states[number], results.states[number]
        if state.free_dim is None or state.max is None:
            return tensor, None
        dim = model_dim(state.free_dim, state.rows_dim)
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

    def _scatter(
        self, slots: Sequence[int], new: Sequence[Tensor], errors: Sequence[ContextTooLong | None]
    ) -> None:
        good = [row for row, error in enumerate(errors) if error is None]
        if not good:
            return
        if len(good) < len(slots):
            slots = [slots[row] for row in good]
            new = [
                tensor.index_select(state.rows_dim, torch.tensor(good, device=tensor.device))
                for state, tensor in zip(self._settings.states, new, strict=True)
            ]
        self._pool.scatter(slots, new)

    def _outputs(self, results: Results, num_rows: int) -> list[list[Tensor]]:
        """Per output, per row, cut to its length."""
        columns = []
        for declared, tensor, lengths in zip(
            self._settings.outputs, results.outputs, results.output_lengths, strict=True
        ):
            rows = list(tensor.unbind(0)) if num_rows else []
            if lengths is not None and declared.free_dim is not None:
                dim = declared.free_dim
                rows = [
                    row.narrow(dim, 0, length) for row, length in zip(rows, lengths, strict=True)
                ]
            columns.append(rows)
        return columns


def _last(row: Tensor, dim: int, length: int, most: int) -> Tensor:
    """The last `most` of the first `length`, in a room of `most`."""
    kept = min(length, most)
    tail = row.narrow(dim, length - kept, kept)
    if kept == most:
        return tail
    room = list(row.shape)
    room[dim] = most - kept
    return torch.cat([tail, tail.new_zeros(room)], dim)
