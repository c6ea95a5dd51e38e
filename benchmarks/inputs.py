"""Prompts of an exact number of tokens, and pictures: the same in every run.

A prompt is a list of token ids, each of which is a word (see `model`).
"""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from functools import cache

import PIL.Image
import PIL.ImageDraw

from benchmarks.model import NUM_SPECIAL, TEMPLATE_TOKENS, words

__all__ = ["Inputs", "ids_of", "text_of"]

_WIDTH, _HEIGHT = 448, 336  # pixels


class Inputs:
    """Prompts and pictures, each different from all earlier ones."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def prompt(self, num_tokens: int) -> list[int]:
        """Return the words of a prompt that lengthens the context by `num_tokens`, template included."""
        num_words = num_tokens - TEMPLATE_TOKENS
        assert num_words > 0, "the template alone is longer"
        first, stop = NUM_SPECIAL, NUM_SPECIAL + len(words())
        return [self._random.randrange(first, stop) for _ in range(num_words)]

    def picture(self) -> bytes:
        """Return a JPEG of disks on a slope of gray, about 20 kB."""
        number = self._random.randrange
        image = PIL.Image.linear_gradient("L").resize((_WIDTH, _HEIGHT)).convert("RGB")
        pen = PIL.ImageDraw.Draw(image)
        for _ in range(24):
            x, y, radius = number(_WIDTH), number(_HEIGHT), number(8, 60)
            color = (number(256), number(256), number(256))
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90)
        return file.getvalue()


def text_of(ids: Sequence[int]) -> str:
    """Return the text of words."""
    return " ".join(words()[number - NUM_SPECIAL] for number in ids)


def ids_of(text: str) -> list[int]:
    """Return the ids of a text made of words."""
    return [_numbers()[word] for word in text.split()]


@cache
def _numbers() -> dict[str, int]:
    return {word: number for number, word in enumerate(words(), NUM_SPECIAL)}
