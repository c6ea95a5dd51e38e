"""As many tokens are guessed as gave most tokens a second of late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from ts_stateful.language.guess_counts import COUNTS, GuessCount

Machine = Callable[[int], tuple[float, int]]  # a count's seconds and tokens


def slow_memory(count: int) -> tuple[float, int]:
    """A pass takes 4 ms, a guess 1; the fifth one is wrong."""
    return 4 + count, 1 + min(count, 4)


def slow_processor(count: int) -> tuple[float, int]:
    """Each row of a pass takes 4 ms."""
    return 1 + 4 * (1 + count) + count, 1 + count


def wrong_guesses(count: int) -> tuple[float, int]:
    """No guess is right."""
    return 4 + count, 1


def run(counts: GuessCount, machine: Machine, steps: int, most: int = 9) -> Counter[int]:
    """Return how often each count was chosen."""
    chosen = Counter[int]()
    for _ in range(steps):
        count = counts.choose(most)
        counts.learn(count, *machine(count))
        chosen[count] += 1
    return chosen


@pytest.mark.parametrize(
    ("machine", "best"), [(slow_memory, 4), (slow_processor, 0), (wrong_guesses, 0)]
)
def test_most_steps_use_the_best_count(machine: Machine, best: int) -> None:
    """All others are tried at first, and now and then."""
    chosen = run(GuessCount(), machine, 1000)
    assert set(chosen) == set(COUNTS)
    assert chosen[best] > 900


def test_another_count_is_used_when_it_is_better() -> None:
    """Memory becomes slower while another program uses it."""
    counts = GuessCount()
    run(counts, slow_processor, 500)
    chosen = run(counts, slow_memory, 1000)
    assert chosen[4] > 700


def test_a_step_that_was_held_up_changes_little() -> None:
    """Another program may have had the processor."""
    counts = GuessCount()
    run(counts, slow_memory, 100)
    counts.learn(4, 1000, 5)
    assert run(counts, slow_memory, 100)[4] > 80


def test_a_first_step_that_was_held_up_changes_little() -> None:
    """Nothing was known then to compare it with."""
    counts = GuessCount()
    counts.learn(0, 1000, 1)
    assert run(counts, wrong_guesses, 100)[0] > 80


@pytest.mark.parametrize("most", range(6))
def test_short_replies_use_counts_that_they_have_tried(most: int) -> None:
    """More guesses than a reply has room for would never be measured."""
    chosen = run(GuessCount(), wrong_guesses, 1000, most)
    assert max(chosen) <= most
    assert chosen[0] > 900


def test_the_right_guesses_of_a_turn_are_expected() -> None:
    """Of two turns in a step, each gets its share."""
    counts = GuessCount((0, 4))
    counts.learn(4, 1.0, 9)
    assert counts.expected(4, 2) == 3.5
    assert counts.expected(0, 2) == 0
