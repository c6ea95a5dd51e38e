"""As many tokens are guessed as give most tokens a second."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest

from ts_stateful.language.guess_counts import COUNTS, GuessCount


class Machine(NamedTuple):
    """What a count takes, and the share of guesses after right ones that are right."""

    seconds: Callable[[int], float]
    share: float


SLOW_MEMORY = Machine(lambda count: 4 + 0.5 * count, 0.9)
SLOW_PROCESSOR = Machine(lambda count: 1 + 4 * (1 + count) + count, 0.9)
WRONG_GUESSES = Machine(lambda count: 4 + count, 0)


def run(counts: GuessCount, machine: Machine, steps: int, most: int = 9) -> Counter[int]:
    """Return how often each count was chosen."""
    chances = random.Random(0)
    chosen = Counter[int]()
    for _ in range(steps):
        count = counts.choose(most)
        num_right = 0
        while num_right < count and chances.random() < machine.share:
            num_right += 1
        counts.learn(count, machine.seconds(count), [num_right])
        chosen[count] += 1
    return chosen


@pytest.mark.parametrize(
    ("machine", "best"), [(SLOW_MEMORY, 6), (SLOW_PROCESSOR, 0), (WRONG_GUESSES, 0)]
)
def test_most_steps_use_the_best_count(machine: Machine, best: int) -> None:
    """All others are tried at first, and now and then; a few wrong guesses in a row change nothing."""
    chosen = run(GuessCount(), machine, 1000)
    assert set(chosen) == set(COUNTS)
    assert chosen[best] > 950


@pytest.mark.parametrize(
    ("before", "after", "best"),
    [
        (SLOW_PROCESSOR, SLOW_MEMORY, 6),
        (SLOW_MEMORY, SLOW_PROCESSOR, 0),
        (SLOW_MEMORY, WRONG_GUESSES, 0),
    ],
)
def test_another_count_is_used_when_it_is_better(
    before: Machine, after: Machine, best: int
) -> None:
    """Memory becomes slower while another program uses it; another text is harder to guess."""
    counts = GuessCount()
    run(counts, before, 500)
    run(counts, after, 600)
    assert run(counts, after, 400)[best] > 370


def test_a_step_that_was_held_up_changes_little() -> None:
    """Another program may have had the processor."""
    counts = GuessCount()
    run(counts, SLOW_MEMORY, 100)
    counts.learn(6, 1000, [6])
    assert run(counts, SLOW_MEMORY, 100)[6] > 80


def test_a_first_step_that_was_held_up_changes_little() -> None:
    """Nothing was known then to compare it with."""
    counts = GuessCount()
    counts.learn(0, 1000, [0])
    assert run(counts, WRONG_GUESSES, 100)[0] > 80


@pytest.mark.parametrize("most", range(6))
def test_short_replies_use_counts_that_they_have_tried(most: int) -> None:
    """More guesses than a reply has room for would never be measured."""
    chosen = run(GuessCount(), WRONG_GUESSES, 1000, most)
    assert max(chosen) <= most
    assert chosen[0] > 900


def test_the_right_guesses_of_a_turn_are_expected() -> None:
    """The first wrong guess ends a draft, so later ones say nothing."""
    counts = GuessCount((0, 2, 4))
    counts.learn(2, 1.0, [2, 0])
    assert counts.expected(4) == pytest.approx(2 / 3 + 4 / 9 + 8 / 27 + 16 / 81)
    assert counts.expected(0) == 0
