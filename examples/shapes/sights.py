"""Facts that the tower is taught to show in the mean of a picture's image tokens, and the head that reads them there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from blank_model import TEXT_WIDTH
from descriptions import CLOSE, COLUMNS, LARGE, ROWS, SIZES, SLACK
from scenes import COLORS, KINDS, Scene, Shape

# How many answers each fact about a kind has: its color or none, its size, its row, its column.
FACTS: Final = {
    "color": len(COLORS) + 1,
    "size": len(SIZES),
    "row": len(ROWS),
    "column": len(COLUMNS),
}


class Sights(NamedTuple):
    """The truth about some scenes: for each kind and fact, the probability of each answer.

    Near a border both answers are probable. Of a kind that is missing, all answers but its color's are zero.
    """

    facts: Tensor  # (scenes, KINDS, sum(FACTS.values()))

    def of(self, scenes: Sequence[int]) -> Sights:
        """Return the truth about a part of the scenes."""
        return Sights(self.facts[scenes])

    def mirrored(self) -> Sights:
        """Return the truth about the mirrored pictures."""
        *others, column = self.facts.split(tuple(FACTS.values()), dim=-1)
        return Sights(torch.cat([*others, column.flip(-1)], dim=-1))


def sights(scenes: Sequence[Scene]) -> Sights:
    """Return the truth about scenes."""
    return Sights(torch.tensor([[_facts(scene, kind) for kind in KINDS] for scene in scenes]))


def _facts(scene: Scene, kind: str) -> list[float]:
    shape = next((shape for shape in scene.shapes if shape.kind == kind), None)
    if shape is None:
        return [0.0] * len(COLORS) + [1.0] + [0.0] * (sum(FACTS.values()) - FACTS["color"])
    return [
        *(float(shape.color == color) for color in COLORS),
        0.0,
        *_size(scene, shape),
        *_thirds((shape.top + shape.size / 2) / scene.height),
        *_thirds((shape.left + shape.size / 2) / scene.width),
    ]


def _size(scene: Scene, shape: Shape) -> tuple[float, float]:
    share = shape.size**2 / (scene.width * scene.height)
    large = _ramp(math.log(share / LARGE) / math.log(CLOSE))
    return large, 1 - large


def _thirds(center: float) -> tuple[float, float, float]:
    second, third = (_ramp((center - border) / SLACK) for border in (1 / 3, 2 / 3))
    return 1 - second, second - third, third


def _ramp(distance: float) -> float:
    """Return 0 below -1, 1 above 1, and a straight line between them."""
    return min(max((1 + distance) / 2, 0.0), 1.0)


class Head(nn.Module):
    """A linear reader of the mean image token, thrown away after the tower has learned."""

    def __init__(self) -> None:
        super().__init__()
        self._facts = nn.Linear(TEXT_WIDTH, len(KINDS) * sum(FACTS.values()))

    def forward(self, tokens: Tensor, truth: Sights) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss for the image tokens of some scenes, and which guesses were right."""
        # Attention averages normalized tokens, so what it can read is in their mean.
        seen = functional.rms_norm(tokens, tokens.shape[-1:]).mean(1)
        guesses = self._facts(seen).unflatten(-1, (len(KINDS), -1))
        widths = tuple(FACTS.values())
        pairs = zip(guesses.split(widths, -1), truth.facts.split(widths, -1), strict=True)
        losses, right = [], {}
        for name, (guess, truly) in zip(FACTS, pairs, strict=True):
            is_there = truly.sum(-1) > 0
            losses.append(functional.cross_entropy(guess[is_there], truly[is_there]))
            choice = guess[is_there].argmax(-1, keepdim=True)
            right[name] = truly[is_there].gather(-1, choice) > 0
        return torch.stack(losses).sum(), right
