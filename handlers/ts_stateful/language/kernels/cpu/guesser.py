"""Guesses of next tokens by a model's own weights in 8 bits (self-speculative decoding, https://arxiv.org/abs/2309.08168).

A step of few rows takes the time of reading the weights. In 8 bits these are a quarter or a half as many bytes, and the next
tokens are nearly always the same. So a few tokens are guessed one after the other, and a single pass verifies them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ts_stateful.config.control_groups import ControlGroups
from ts_stateful.language.kernels.cpu.fused_layers import FusedLayers
from ts_stateful.language.kernels.decoder_layout import UnknownDecoderError
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.layout import KVLayout
from ts_stateful.language.kv.spans import Rows, Span

__all__ = ["GuessPlan", "Guesser", "find_guesser", "plan_guesses"]

logger = logging.getLogger(__name__)

_LEAST_WEIGHTS: Final = 1 << 23  # a step of a smaller model is mostly fixed cost
_PART_OF_MEMORY: Final = 8
_MOST_TURNS: Final = 2  # with more, arithmetic takes the time
_NUM_ROWS: Final = (1, 2, 4, 8, 16)  # of the passes that are timed
_MOST_TOKENS: Final = 7  # of a turn
_TIMES: Final = 3
_EXPECTED: Final = 0.9  # of guesses are right, if those before them are
_WORTHWHILE: Final = 1.15  # times as many tokens a second


class GuessPlan(NamedTuple):
    """How many tokens to guess for each turn, and the share of them that has to be right to make up for the time."""

    tokens: int
    least_share: float


class Guesser:
    """A decoder's layers in 8 bits. `plans` are those of steps of 1, 2, ... turns; None where guesses take too long."""

    def __init__(self, layers: FusedLayers, plans: Sequence[GuessPlan | None]) -> None:
        self._layers = layers
        self._plans = plans

    def __call__(self, rows: Rows) -> Tensor | None:
        """Return the logits after one token of each session, and write its states; None as `FusedLayers` does."""
        return self._layers(rows)

    def plan(self, num_turns: int) -> GuessPlan | None:
        """Return what to guess in a step of so many turns that decode."""
        return self._plans[num_turns - 1] if num_turns <= len(self._plans) else None


def find_guesser(
    fused: FusedLayers, layout: KVLayout, axes: Sequence[int], groups: ControlGroups | None = None
) -> Guesser | None:
    """Return the guesser of a model by its fused layers; None where it takes too much memory, or gains nothing.

    `axes` is the shape of positions without the tokens. To be called on the threads that will compute the passes.
    """
    weights, memory = fused.num_weights, (groups or ControlGroups()).memory_bytes()
    if weights < _LEAST_WEIGHTS:
        return None
    if weights > memory // _PART_OF_MEMORY:
        logger.info(
            "no tokens are guessed: weights in 8 bits would take %d of %d MB of memory",
            *(weights // 1_000_000, memory // 1_000_000),
        )
        return None
    try:
        rounded = fused.rounded()
    except UnknownDecoderError as error:
        logger.info("no tokens are guessed: %s", error)
        return None
    plans = _timed_plans(fused, rounded, layout, axes)
    if not any(plans):
        logger.info("no tokens are guessed: that would take as long as computing them")
        return None
    logger.info(
        "weights in 8 bits (%d MB) guess next tokens: %s of 1 and of 2 replies at once",
        weights // 1_000_000,
        ", ".join(str(plan.tokens if plan else 0) for plan in plans),
    )
    return Guesser(rounded, plans)


def plan_guesses(num_turns: int, guess: float, compute: Callable[[int], float]) -> GuessPlan | None:
    """Return the plan by which most tokens a second are expected; None if these are hardly more than without.

    `guess` are the seconds of guessing a token of each turn, `compute` those of a pass over so many rows.
    """
    alone, best, gain = compute(num_turns), None, _WORTHWHILE
    for tokens in range(1, min(_MOST_TOKENS, _NUM_ROWS[-1] // num_turns - 1) + 1):
        cost = (tokens * guess + compute(num_turns * (tokens + 1))) / alone  # in steps without
        expected = sum(_EXPECTED**place for place in range(tokens + 1))
        if expected / cost > gain:
            best, gain = GuessPlan(tokens, (cost - 1) / tokens), expected / cost
    return best


@torch.inference_mode()
def _timed_plans(
    fused: FusedLayers, rounded: FusedLayers, layout: KVLayout, axes: Sequence[int]
) -> list[GuessPlan | None]:
    def seconds(layers: FusedLayers, counts: Sequence[int]) -> float:
        caches = [KVCache(layout, torch.device("cpu")) for _ in counts]
        for kv, count in zip(caches, counts, strict=True):
            kv.reserve(count)
        spans = [Span(kv, 0, count) for kv, count in zip(caches, counts, strict=True)]
        places = torch.tensor([i for count in counts for i in range(count)])
        rows = Rows([1] * len(places), places.expand(*axes, -1), spans, None, True)
        began_at = time.perf_counter()
        layers(rows)
        return time.perf_counter() - began_at

    guesses, passes = [], []
    for _ in range(_TIMES):
        passes.append([seconds(fused, (num,)) for num in _NUM_ROWS])
        guesses.append([seconds(rounded, (1,) * num) for num in range(1, _MOST_TURNS + 1)])
    times = [min(column) for column in zip(*passes, strict=True)]

    def compute(num_rows: int) -> float:
        return float(np.interp(num_rows, _NUM_ROWS, times))

    return [
        plan_guesses(num, min(column), compute)
        for num, column in enumerate(zip(*guesses, strict=True), 1)
    ]
