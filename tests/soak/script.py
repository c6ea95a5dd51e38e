"""What a user says and opens, drawn from random numbers.

Owns the chances. Knows nothing of servers: the same numbers make the same script.
"""

from __future__ import annotations

import random
from typing import Any, Final

from tests.soak.talk import NUM_PICTURES, QUESTIONS, SYSTEMS, Opening, Said

__all__ = ["Script"]

_TENANTS: Final = (None, None, "a", "b")
_LONG: Final = (60, 120)  # tokens of a reply that does not end by itself
_SEEDS: Final = 3  # few, so that the same is asked again


class Script:
    """One user's part."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def chance(self, probability: float) -> bool:
        """Whether it is so, this time."""
        return self.rng.random() < probability

    def opening(self) -> Opening:
        """Most have one picture, some have none, some have two; half of them are shown again and again."""
        number = self.rng.choices((0, 1, 2), (2, 6, 1))[0]
        few = NUM_PICTURES if self.chance(0.5) else 2
        pictures = tuple(self.rng.randrange(few) for _ in range(number))
        return Opening(self.rng.choice(SYSTEMS), pictures, self.rng.choice(_TENANTS))

    def question(self) -> Said:
        """A turn that ends by itself; one in ten has a picture of its own, one in fifteen follows from nothing."""
        pictures = (self.rng.randrange(NUM_PICTURES),) if self.chance(0.1) else ()
        options: dict[str, Any] = {"max_new_tokens": 16}
        if self.chance(0.4):
            options |= {"temperature": 1.0, "top_p": self.rng.choice((0.9, 1.0))}
            if self.chance(0.85):
                options["seed"] = self.rng.randrange(_SEEDS)
        if self.chance(0.1):
            options["stop"] = self.rng.choice(("red", "yes", "e"))
        return Said(self.rng.choice(QUESTIONS), pictures, tuple(options.items()))

    def long_question(self, times: int = 1) -> Said:
        """A turn that goes on for a while, so many times as long, and can be had again."""
        num_tokens = times * self.rng.randint(*_LONG)
        options: dict[str, Any] = {"max_new_tokens": num_tokens, "ignore_eos": True}
        if self.chance(0.5):
            options |= {"temperature": 1.0, "seed": self.rng.randrange(_SEEDS)}
        return Said(self.rng.choice(QUESTIONS), (), tuple(options.items()))
