"""The dialogues of the measurement, about verses that the model has not learned: `held_out.json` beside this file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

__all__ = ["FOLDER", "MODEL", "HeldOut", "Said", "held_out"]

FOLDER: Final = Path(__file__).resolve().parent
MODEL: Final = FOLDER / "model"


class HeldOut(Struct, frozen=True):
    """The prompts of a dialogue, and the replies that are right, if only one is."""

    kind: str
    prompts: list[str]
    replies: list[str] = []

    @property
    def repeats(self) -> bool:
        """True if its replies repeat what was said before."""
        return bool(self.replies)

    @property
    def temperature(self) -> float:
        """Greedy replies of a small model that has nothing to repeat soon run in circles; drawn ones do not."""
        return 0.0 if self.repeats else 1.0

    @property
    def max_new_tokens(self) -> int:
        """More than right replies have."""
        return 160


class Said(NamedTuple):
    """The replies of some dialogues, their tokens but the first ones, and the seconds between first and last tokens; tokens
    that were drafted, and those of them that were right.
    """

    replies: list[str]
    num_tokens: int
    seconds: float
    num_drafted: int
    num_accepted: int


@cache
def held_out(repeating: bool) -> list[HeldOut]:
    """Return the dialogues whose replies repeat their history, or the others."""
    made = msgspec.json.decode((FOLDER / "held_out.json").read_bytes(), type=list[HeldOut])
    return [one for one in made if one.repeats == repeating]
