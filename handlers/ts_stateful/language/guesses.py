"""The next tokens of turns, guessed one after the other by the model's weights in 8 bits."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch

from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.kernels.cpu.guesser import Guesser, GuessPlan
from ts_stateful.language.kv.spans import Rows
from ts_stateful.language.network.sampler import DrawRows, sample
from ts_stateful.language.runner import Runner

__all__ = ["Guesses"]


class Guesses:
    """Guesses tokens of turns that decode. States are written after those that the sessions have, and are not kept."""

    def __init__(self, runner: Runner, guesser: Guesser, draw_rows: DrawRows | None) -> None:
        self._runner = runner
        self._guesser = guesser
        self._draw_rows = draw_rows

    def plan(self, num_turns: int) -> GuessPlan | None:
        """Return what to guess in a step of so many turns; None: nothing."""
        return self._guesser.plan(num_turns)

    @torch.inference_mode()
    def __call__(self, sequences: Items[Sequence], count: int) -> list[list[int]]:
        """Return the next `count` tokens of each turn, greedy or drawn; none where the model cannot guess here."""
        ids = [sequence.ids[-1] for sequence in sequences]
        settings = [sequence.sampling for sequence in sequences]
        is_greedy = not any(row.temperature for row in settings)
        guesses: list[list[int]] = [[] for _ in sequences]
        for place in range(count):
            spans, positions = self._runner.places(sequences, place)
            for span in spans:
                span.kv.reserve(span.stop)
            logits = self._guesser(Rows(ids, positions, spans, None, is_greedy))
            if logits is None:
                break
            later = [row._replace(position=row.position + place) for row in settings]
            ids = sample(logits, later, self._draw_rows)
            for guess, token in zip(guesses, ids, strict=True):
                guess.append(token)
        return guesses
