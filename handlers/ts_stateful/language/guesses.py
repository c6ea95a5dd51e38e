"""Guesses of next tokens by a model's own weights in 8 bits (self-speculative decoding, https://arxiv.org/abs/2309.08168).

A step of few rows takes the time of reading the weights. In 8 bits these are a quarter or a half as many bytes, and the next
tokens are nearly always the same. So a few tokens are guessed one after the other, and a single pass verifies them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Items
from typing import Final

import torch

from ts_stateful.config.control_groups import ControlGroups
from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.guess_counts import COUNTS, GuessCount
from ts_stateful.language.kernels.cpu.fused_layers import FusedLayers
from ts_stateful.language.kernels.decoder_layout import UnknownDecoderError
from ts_stateful.language.kv.spans import Rows
from ts_stateful.language.network.forward import Forward
from ts_stateful.language.network.sampler import DrawRows, sample
from ts_stateful.language.runner import Runner

__all__ = ["Guesses", "round_layers"]

logger = logging.getLogger(__name__)

_LEAST_WEIGHTS: Final = 1 << 23  # a step of a smaller model is mostly fixed cost
_PART_OF_MEMORY: Final = 8
_MOST_TURNS: Final = 2  # with more, the arithmetic of the additional rows takes the time


def round_layers(forward: Forward, groups: ControlGroups | None = None) -> FusedLayers | None:
    """Return a model's layers in 8 bits; None where it is small, they would take too much memory, or cannot be rounded."""
    fused = forward.shortcut
    if not isinstance(fused, FusedLayers) or fused.num_weights < _LEAST_WEIGHTS:
        return None
    megabytes, memory = fused.num_weights // 1_000_000, (groups or ControlGroups()).memory_bytes()
    if _PART_OF_MEMORY * fused.num_weights > memory:
        reason = f"weights in 8 bits would take {megabytes} of {memory // 1_000_000} MB of memory"
        logger.info("no tokens are guessed: %s", reason)
        return None
    try:
        rounded = fused.rounded()
    except UnknownDecoderError as error:
        logger.info("no tokens are guessed: %s", error)
        return None
    logger.info("next tokens are guessed by weights in 8 bits, %d MB", megabytes)
    return rounded


class Guesses:
    """Guesses tokens of turns that decode. States are written after those that the sessions have, and are not kept."""

    def __init__(
        self,
        runner: Runner,
        layers: FusedLayers,
        draw_rows: DrawRows | None,
        counts: Items[int] = COUNTS,
    ) -> None:
        self._runner = runner
        self._layers = layers
        self._draw_rows = draw_rows
        self._counts = [GuessCount(counts) for _ in range(_MOST_TURNS)]

    def count_for(self, num_turns: int) -> GuessCount | None:
        """Return what chooses the number of guesses in a step of so many turns; None: there are none."""
        return self._counts[num_turns - 1] if 0 < num_turns <= _MOST_TURNS else None

    @torch.inference_mode()
    def __call__(self, sequences: Items[Sequence], count: int) -> list[list[int]]:
        """Return the next `count` tokens of each turn, greedy or drawn; none where the model cannot guess here."""
        ids = [sequence.ids[-1] for sequence in sequences]
        settings = [sequence.sampling for sequence in sequences]
        guesses: list[list[int]] = [[] for _ in sequences]
        for place in range(count):
            spans, positions = self._runner.places(sequences, place)
            for span in spans:
                span.kv.reserve(span.stop)
            later = [row.later(place) for row in settings]
            # A draw may meet estimates, which are near enough: the output layer may have as many weights as all others.
            draws = [row._replace(top_p=1.0) for row in later]
            logits = self._layers(Rows(ids, positions, spans, draws=draws))
            if logits is None:
                break
            ids = sample(logits, later, self._draw_rows)
            for guess, token in zip(guesses, ids, strict=True):
                guess.append(token)
        return guesses
