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
from ts_stateful.protocol.declarations import Input, Ragged
from ts_stateful.protocol.tensors import Elements
from ts_stateful.recurrent.batch import InputRow
from ts_stateful.recurrent.passes import Passes
from ts_stateful.recurrent.program import Program, torch_dtype
from ts_stateful.recurrent.slots import SlotPool

__all__ = ["verify_program"]

logger = logging.getLogger(__name__)

# Of inputs with a free dimension, until the model takes one.
_LENGTHS = (4, 16, 64, 160, 400, 1600, 16000)
_NUM_STEPS = 3
# Relative to the largest element; a different order of sums is no dependence.
_TOLERANCE = 1e-3
_COARSE_TOLERANCE = 2e-2  # of numbers of half precision, and on devices that compute with such


class _Given(NamedTuple):
    """The results of a step: outputs, and the lengths that its states would have."""

    outputs: Sequence[Tensor]
    lengths: Sequence[int | None]


def verify_program(
    program: Program, settings: StateConfig, initial: Sequence[Tensor], device: torch.device
) -> None:
    """Step two made-up sequences alone and together.

    Raises:
        ConfigError: the program cannot be called so, or gives a row something else when another one is beside it.
    """
    free = [t for t in settings.inputs if t.free_dim is not None and not t.is_derived]
    padded = any(tensor.ragged is Ragged.PAD for tensor in free)
    trouble: Exception | None = None
    most = min((tensor.max for tensor in free if tensor.max is not None), default=None)
    tried = {_lengths(length, most, padded): None for length in (_LENGTHS if free else (1,))}
    for lengths in tried:
        try:
            ephemeral = [_stepped(program, settings, initial, device, [n], lengths) for n in (0, 1)]
            beside = _stepped(program, settings, initial, device, [0, 1], lengths)
        except Exception as error:  # whatever a user's program raises
            trouble = error
            continue
        tolerance = _tolerance(settings, device)
        _compare(settings, [steps[0] for steps in ephemeral], beside, tolerance)
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
    passes = Passes(program, settings, pool, device)
    slots = [pool.take() for _ in numbers]
    kept: list[Sequence[int | None]] = [pool.initial_lengths() for _ in numbers]
    steps: list[list[_Given]] = [[] for _ in numbers]
    for step in range(_NUM_STEPS):
        rows = []
        for place, number in enumerate(numbers):
            made_up = _made_up(settings, number, step, lengths[number])
            data, shapes = zip(*made_up, strict=True)
            rows.append(InputRow(data, shapes, kept[place], start=step == 0))
        stepped = passes.run(rows, slots)
        for place, lengths_now in enumerate(stepped.lengths):
            outputs = [column.tensor(place) for column in stepped.outputs]
            steps[place].append(_Given(outputs, lengths_now))
            if place not in stepped.errors:
                kept[place] = lengths_now
    return steps


def _made_up(settings: StateConfig, number: int, step: int, length: int) -> list[Elements]:
    random = torch.Generator().manual_seed(100 * number + step)
    return [
        _elements(tensor, length, random) for tensor in settings.inputs if not tensor.is_derived
    ]


def _elements(tensor: Input, length: int, random: torch.Generator) -> Elements:
    shape = tuple(length if size < 0 else size for size in tensor.shape)
    dtype = torch_dtype(tensor.datatype)
    if dtype.is_floating_point:
        made = torch.randn(shape, generator=random).to(dtype)
    else:  # 0 and 1 are in the range of most that is counted
        made = torch.randint(0, 2, shape, generator=random).to(dtype)
    return Elements(made.numpy().tobytes(), shape)


def _compare(
    settings: StateConfig,
    ephemeral: Sequence[Sequence[_Given]],
    beside: Sequence[Sequence[_Given]],
    tolerance: float,
) -> None:
    for mine, other in zip(ephemeral, beside, strict=True):
        for a, b in zip(mine, other, strict=True):
            if a.lengths != b.lengths:
                raise _dependent(settings, "the lengths of its states")
            for declared, x, y in zip(settings.outputs, a.outputs, b.outputs, strict=True):
                if not _close(x, y, tolerance):
                    raise _dependent(settings, declared.name)


def _dependent(settings: StateConfig, what: str) -> ConfigError:
    padded = any(tensor.ragged is Ragged.PAD for tensor in settings.inputs)
    padded = padded or any(state.ragged is Ragged.PAD for state in settings.states)
    cure = "; let it see lengthsOf or maskOf what is padded, or declare `ragged: group`"
    return ConfigError(
        f"handler.model {settings.model!r}: {what} of one sequence depends on another one in the same pass"
        f"{cure if padded else ''}"
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
