"""The check that a program does what is declared, run when it is loaded.

Owns the proof that sequences cannot disturb each other: what a row gets must not depend on the rows beside it, nor, where rows
are padded, on how far. Knows nothing of requests.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ts_stateful.config.schema import ConfigError, StateConfig
from ts_stateful.protocol.declarations import Input, Output, Ragged, State
from ts_stateful.protocol.tensors import Elements
from ts_stateful.recurrent.batch import InputRow
from ts_stateful.recurrent.passes import Passes
from ts_stateful.recurrent.program import Program, torch_dtype
from ts_stateful.recurrent.slots import SlotPool

__all__ = ["made_up_row", "verify_program"]

logger = logging.getLogger(__name__)

# Of inputs with a free dimension, until the model takes one.
_LENGTHS = (4, 16, 64, 160, 400, 1600, 16000)
_NUM_STEPS = 3
# Relative to the largest element; a different order of sums is no dependence.
_TOLERANCE = 1e-3
_COARSE_TOLERANCE = 2e-2  # of numbers of half precision, and on devices that compute with such


class _Given(NamedTuple):
    """The results of a step: outputs and then states, and the lengths that its states would have."""

    tensors: Sequence[Tensor]
    lengths: Sequence[int | None]


def verify_program(
    program: Program, settings: StateConfig, initial: Sequence[Tensor], device: torch.device
) -> None:
    """Step two made-up sequences alone and together.

    Raises:
        ConfigError: the program cannot be called so, or gives a row something else when another one is beside it, or
            when it is called again.
    """
    free = [t for t in settings.inputs if t.free_dim is not None and not t.is_derived]
    padded = any(tensor.ragged is Ragged.PAD for tensor in free)
    trouble: Exception | None = None
    most = min((tensor.max for tensor in free if tensor.max is not None), default=None)
    tried = {_lengths(length, most, padded): None for length in (_LENGTHS if free else (1,))}
    for lengths in tried:
        try:
            first, again, second, together = (
                _stepped(program, settings, initial, device, numbers, lengths)
                for numbers in ([0], [0], [1], [0, 1][: settings.max_rows])
            )
        except Exception as error:  # whatever a user's program raises
            trouble = error
            continue
        tolerance = _tolerance(settings, device)
        if what := _difference(settings, first, again, tolerance):
            raise _unsteady(settings, what)
        alone = [*first, *second][: settings.max_rows]
        if what := _difference(settings, alone, together, tolerance):
            raise _dependent(settings, what)
        return
    if not free:
        raise ConfigError(
            f"handler.model {settings.model!r} cannot be called as declared: {trouble}"
        ) from trouble
    logger.warning(
        "%s took none of the lengths %s: whether rows are independent was not tried (%s)",
        settings.model,
        [shorter for shorter, _ in tried],
        trouble,
    )


def _lengths(length: int, most: int | None, padded: bool) -> tuple[int, int]:
    """Return the lengths of the two sequences, `most` at most. They differ where rows are padded."""
    longer = min(length + length // 2 if padded else length, most or 2**31)
    shorter = max(1, longer * 2 // 3) if padded else longer
    return shorter, longer


def _stepped(
    program: Program,
    settings: StateConfig,
    initial: Sequence[Tensor],
    device: torch.device,
    numbers: Sequence[int],
    lengths: Sequence[int],
) -> list[list[_Given]]:
    """Return, for each sequence, the results of its steps."""
    pool = SlotPool(settings.states, initial, device, len(numbers))
    passes = Passes(program, settings, pool)
    slots = [pool.take() for _ in numbers]
    kept: list[Sequence[int | None]] = [pool.initial_lengths() for _ in numbers]
    steps: list[list[_Given]] = [[] for _ in numbers]
    for step in range(_NUM_STEPS):
        rows = []
        for place, number in enumerate(numbers):
            row = made_up_row(settings, number, step, lengths[number])
            row.lengths = kept[place]
            rows.append(row)
        stepped = passes.run(rows, slots)
        passes.keep(stepped)
        for place, lengths_now in enumerate(stepped.lengths):
            if place not in stepped.errors:
                kept[place] = lengths_now
            # Copies: the model may write the next step's outputs into the same memory.
            outputs = [output.tensor(place).clone() for output in stepped.outputs]
            states = pool.keep(slots[place], kept[place])
            steps[place].append(_Given([*outputs, *states], lengths_now))
    return steps


def made_up_row(settings: StateConfig, number: int, step: int = 0, length: int = 1) -> InputRow:
    """Return a step of a made-up sequence, with random inputs."""
    random = torch.Generator().manual_seed(100 * number + step)
    made_up = [_elements(each, length, random) for each in settings.inputs if not each.is_derived]
    data, shapes = zip(*made_up, strict=True)
    return InputRow(data, shapes, start=step == 0)


def _elements(tensor: Input, length: int, random: torch.Generator) -> Elements:
    shape = tuple(length if size < 0 else size for size in tensor.shape)
    dtype = torch_dtype(tensor.datatype)
    if dtype.is_floating_point:
        # Above 0 and at most 1: in the range of most that is measured, also of what has a logarithm.
        made = (1 - torch.rand(shape, generator=random)).to(dtype)
    else:  # 0 and 1 are in the range of most that is counted
        made = torch.randint(0, 2, shape, generator=random).to(dtype)
    return Elements(made.numpy().tobytes(), shape)


def _difference(
    settings: StateConfig,
    given: Sequence[Sequence[_Given]],
    other: Sequence[Sequence[_Given]],
    tolerance: float,
) -> str | None:
    """Return the name of the first result that differs in two runs of the same sequences."""
    compared: list[Output | State] = [*settings.outputs]
    if not _is_padded(settings):  # else a state may have room that is written over by the next step
        compared += settings.states
    for mine, others in zip(given, other, strict=True):
        for a, b in zip(mine, others, strict=True):
            if a.lengths != b.lengths:
                return "the lengths of its states"
            for declared, x, y in zip(compared, a.tensors, b.tensors, strict=False):
                # States of integers may be rounded, and differ where the last bit of a float does.
                is_rounded = isinstance(declared, State) and not x.is_floating_point()
                if not is_rounded and not _close(x, y, tolerance):
                    return declared.name
    return None


def _is_padded(settings: StateConfig) -> bool:
    tensors: list[Input | State] = [*settings.inputs, *settings.states]
    return any(tensor.ragged is Ragged.PAD for tensor in tensors)


def _unsteady(settings: StateConfig, what: str) -> ConfigError:
    return ConfigError(
        f"handler.model {settings.model!r}: its results differ from call to call ({what}); make random numbers an input,"
        " and what it keeps between steps a state"
    )


def _dependent(settings: StateConfig, what: str) -> ConfigError:
    cure = "; let it see lengthsOf or maskOf what is padded, or declare `ragged: group`"
    return ConfigError(
        f"handler.model {settings.model!r}: {what} of one sequence depends on another one in the same pass"
        f"{cure if _is_padded(settings) else ''}"
    )


def _tolerance(settings: StateConfig, device: torch.device) -> float:
    tensors = (*settings.inputs, *settings.outputs, *settings.states)
    halves = {torch.float16, torch.bfloat16} & {torch_dtype(each.datatype) for each in tensors}
    return _COARSE_TOLERANCE if halves or device.type != "cpu" else _TOLERANCE


def _close(x: Tensor, y: Tensor, tolerance: float) -> bool:
    if x.shape != y.shape:
        return False
    if not x.is_floating_point():
        return torch.equal(x, y)
    scale = float(x.abs().max()) if x.numel() else 0.0
    if not math.isfinite(scale):
        return torch.equal(x.isfinite(), y.isfinite())
    return bool(torch.allclose(x.double(), y.double(), rtol=0, atol=tolerance * max(scale, 1e-6)))
