"""The choice of torch's library for passes of few rows on a CPU, by the time that they take.

oneDNN lays out the weights of an `nn.LSTM` in every call. Of few rows that takes longer than the multiplications: torch
without oneDNN takes a quarter of the time for one row, and twice the time for a hundred.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ts_stateful.config.schema import StateConfig
from ts_stateful.recurrent.batch import Shaper
from ts_stateful.recurrent.program import Program
from ts_stateful.recurrent.verify import made_up_row

__all__ = ["choose_library"]

logger = logging.getLogger(__name__)

_SIZES = (1, 2, 4, 8, 16, 32, 64)
_TIMES = 5
_GAIN = 1.2  # what is not clearly faster leaves torch as it is
_PATIENCE_S = 1.0  # of the load; a pass that takes as long has other cost than the layout


def choose_library(
    program: Program,
    settings: StateConfig,
    initial: Sequence[Tensor],
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Time passes of 1, 2, 4, ... rows with and without oneDNN, and set `program.plain_rows`.

    Nothing is timed on other devices, nor for inputs or states of a free length, of which no usual one is known.
    """
    tensors = (*settings.inputs, *settings.states)
    if initial[0].device.type != "cpu" or any(each.free_dim is not None for each in tensors):
        return
    if not torch.backends.mkldnn.is_available():
        return
    chosen, gain = 0, 0.0
    try:
        for num_rows, quotient in _quotients(program, settings, initial, clock):
            if quotient < _GAIN:
                break
            chosen, gain = num_rows, max(gain, quotient)
    except Exception as error:  # whatever a user's program raises
        chosen = 0
        logger.info("%s: passes of few rows could not be timed: %s", program.name, error)
    program.plain_rows = chosen
    if chosen:
        logger.info(
            "%s: passes of up to %d rows go without oneDNN, which takes up to %.1f times as long",
            program.name,
            chosen,
            gain,
        )


def _quotients(
    program: Program, settings: StateConfig, initial: Sequence[Tensor], clock: Callable[[], float]
) -> Iterator[tuple[int, float]]:
    """Yield numbers of rows, and the time with oneDNN over that without it."""
    until, shaper = clock() + _PATIENCE_S, Shaper(settings, initial[0].device)
    for num_rows in (settings.max_rows,) if settings.fixed_rows else _SIZES:
        if num_rows > settings.max_rows or clock() > until:
            return
        rows = [made_up_row(settings, number) for number in range(num_rows)]
        inputs = shaper.inputs(rows, num_rows)
        states = [
            tensor.repeat_interleave(num_rows, state.rows_dim)
            for state, tensor in zip(settings.states, initial, strict=True)
        ]
        seconds: dict[int, list[float]] = {0: [], num_rows: []}
        for _ in range(_TIMES):
            for plain_rows, taken in seconds.items():
                program.plain_rows = plain_rows
                began = clock()
                program(inputs, states)
                taken.append(clock() - began)
        yield num_rows, min(seconds[0]) / min(seconds[num_rows])
