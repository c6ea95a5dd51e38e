"""The forward passes: the next tokens of many sequences at once.

Owns what a stock `transformers` model is called with. Knows sequences, but nothing of requests, scheduling or the table. A
step is one pass over the new tokens of all its sequences (see `attention`), and a second one if some of them stand for
images. A model that cannot take several sequences in one pass gets one for each, just as exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.kv.spans import Span
from ts_stateful.language.network.load import Model
from ts_stateful.language.scheduler import Chunk

__all__ = ["Logits", "Runner"]


class Logits(NamedTuple):
    """What follows the last known token of some sequences: `rows` is `(sequences, vocabulary)`."""

    sequences: list[Sequence]
    rows: Tensor

    @staticmethod
    def join(parts: Items[Logits]) -> Logits:
        """Those of several passes; one that failed has no rows, and what it has is on no device."""
        sequences = [sequence for part in parts for sequence in part.sequences]
        rows = [part.rows for part in parts if part.sequences]
        return Logits(sequences, torch.cat(rows) if rows else torch.empty(0))


class _Piece(NamedTuple):
    """Tokens `start` to `stop` of a sequence that go into one pass."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def ids(self) -> list[int]:
        return self.sequence.ids[self.start : self.stop]

    @property
    def sees(self) -> bool:
        """Whether some of its tokens stand for an image."""
        mask = self.sequence.image_mask
        return mask is not None and 1 in mask[self.start : self.stop]


class Runner:
    """Runs one model on one device."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._forward = model.forward

    @torch.inference_mode()
    def run(self, chunks: Iterable[Chunk[Sequence]]) -> Logits:
        """Computes every chunk; returns the logits of the sequences whose last token was among them.

        If it raises, every sequence stands where it stood.
        """
        pieces = [self._piece(*chunk) for chunk in chunks]
        try:
            results = [self._pass(group) for group in self._passes(pieces)]
        except BaseException:
            for sequence, start, _ in pieces:
                sequence.context.kv.length = start
            raise
        return Logits.join(results)

    def _piece(self, sequence: Sequence, num_tokens: int) -> _Piece:
        if self._model.vision is not None and sequence.all_images and sequence.image_mask is None:
            sequence.image_mask = self._model.vision.mask(sequence.ids, sequence.all_images)
        start = sequence.context.kv.length
        return _Piece(sequence, start, start + num_tokens)

    def _passes(self, pieces: list[_Piece]) -> Iterator[list[_Piece]]:
        """The pieces that go through the model together.

        Beside real image tokens, one that a model has generated or a user has written would be taken for one, so pieces
        that see go apart from those that do not, and are cut around such strays.
        """
        seeing = [piece for piece in pieces if piece.sees]
        blind = [piece for piece in pieces if not piece.sees]
        clean = [piece for piece in seeing if not self._strays(piece)]
        for group in (blind, clean):
            if self._forward.flat and group:
                yield group
            elif group:
                yield from ([piece] for piece in group)
        for piece in seeing:
            strays = self._strays(piece)
            if strays:
                bounds = {piece.start, piece.stop, *strays, *(stray + 1 for stray in strays)}
                for start, stop in itertools.pairwise(sorted(bounds)):
                    yield [_Piece(piece.sequence, start, stop)]

    def _strays(self, piece: _Piece) -> list[int]:
        vision, mask = self._model.vision, piece.sequence.image_mask
        assert vision is not None
        assert mask is not None
        token, ids = vision.image_token_id, piece.sequence.ids
        return [i for i in range(piece.start, piece.stop) if ids[i] == token and not mask[i]]

    def _pass(self, pieces: list[_Piece]) -> Logits:
        spans = [Span(p.sequence.context.kv, p.start, p.stop - p.start) for p in pieces]
        ends = [end - 1 for end in itertools.accumulate(span.num_tokens for span in spans)]
        due = [i for i, piece in enumerate(pieces) if piece.stop == len(piece.sequence.ids)]
        rows = self._forward(
            [token for piece in pieces for token in piece.ids],
            spans,
            self._positions(pieces),
            [ends[i] for i in due] or ends[-1:],  # a model must be asked for one at least
            **self._encoded(pieces),
        )
        return Logits([pieces[i].sequence for i in due], rows[: len(due)])

    def _encoded(self, pieces: Items[_Piece]) -> dict[str, Any]:
        """The image embeddings that belong to these tokens, where any stand for images."""
        vision = self._model.vision
        if vision is None or not pieces[0].sees:
            return {}
        parts = []
        for sequence, start, stop in pieces:
            mask = sequence.image_mask
            assert mask is not None
            first = mask.count(1, 0, start)
            parts.append(
                vision.features(sequence.all_images, first, first + mask.count(1, start, stop))
            )
        return {"mm_encoder_outputs": vision.outputs(parts)}

    def _positions(self, pieces: Items[_Piece]) -> Tensor | None:
        """Positions `(3, 1, n)` for models with M-RoPE; others count."""
        if self._forward.rope_index is None:
            return None
        return torch.cat([self._rope_positions(piece) for piece in pieces], dim=-1)

    def _rope_positions(self, piece: _Piece) -> Tensor:
        sequence, start, stop = piece
        grids = [image.grid for image in sequence.all_images if image.grid is not None]
        index = torch.arange(start, stop)
        if not grids or sequence.image_mask is None:
            return index.expand(3, 1, -1)
        if sequence.positions is None:
            assert self._forward.rope_index is not None
            sequence.positions, _ = self._forward.rope_index(
                torch.tensor([sequence.ids[: sequence.num_prompt]]),
                mm_token_type_ids=torch.tensor([list(sequence.image_mask)], dtype=torch.int),
                image_grid_thw=torch.cat(grids),
            )
        prompt: Tensor = sequence.positions  # (3, 1, num_prompt)
        # Behind the prompt there is only text, whose positions go on from the highest one.
        behind = index[max(0, sequence.num_prompt - start) :]
        behind = behind + int(prompt.max()) + 1 - sequence.num_prompt
        return torch.cat([prompt[..., start:stop], behind.expand(3, 1, -1)], dim=-1)
