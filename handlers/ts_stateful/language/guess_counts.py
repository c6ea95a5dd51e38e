"""The number of tokens to guess before a pass: the one that gave most tokens a second of late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["COUNTS", "GuessCount"]

COUNTS: Final = (0, 2, 4, 6)
_PERIOD: Final = 128  # steps until another count is tried again
_TRIES: Final = 2
_WEIGHT: Final = 0.1  # of the last step in what a count takes
_GUESS_WEIGHT: Final = 1 / 64  # of the last guess in the share of right ones
_OUTLIER: Final = 2.0  # times what a count takes: a longer step was held up by something else


class _Pace:
    """The seconds of a count's steps, the last ones weighing most."""

    def __init__(self) -> None:
        self.num_tries = 0
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        weight = max(_WEIGHT, 1 / (1 + self.num_tries))
        if self.num_tries:
            seconds = min(seconds, _OUTLIER * self.seconds)
            self.seconds = min(self.seconds, _OUTLIER * seconds)
        self.seconds += weight * (seconds - self.seconds)
        self.num_tries += 1


class GuessCount:
    """The count that steps of so many turns use. Memory and processor change their speed by the hour, and texts differ.

    A count's steps are timed. How often a guess is right is taken from the steps of all counts: those of one are few.
    """

    def __init__(self, counts: Sequence[int] = COUNTS) -> None:
        self._paces = {count: _Pace() for count in counts}
        self._num_steps = self._num_guesses = 0
        self._share = 0.0  # of guesses after right ones that were right, too

    def choose(self, most: int) -> int:
        """Return the count of the next step, up to `most`: the best one, or now and then another to try again."""
        self._num_steps += 1
        paces = self._paces
        if self._num_steps % _PERIOD == 0:
            paces[[*paces][self._num_steps // _PERIOD % len(paces)]] = _Pace()
        return min((count for count in paces if count <= most), key=self._rank)

    def learn(self, count: int, seconds: float, accepted: Iterable[int]) -> None:
        """Take what a step took, and how many guesses of each turn were right."""
        self._paces[count].add(seconds)
        for num_right in accepted:
            for place in range(min(count, num_right + 1)):
                self._num_guesses += 1
                weight = max(_GUESS_WEIGHT, 1 / self._num_guesses)
                self._share += weight * ((place < num_right) - self._share)

    def expected(self, count: int) -> float:
        """Return the guesses of a turn that are likely to be right."""
        return sum(self._share**place for place in range(1, count + 1))

    def _rank(self, count: int) -> tuple[int, float]:
        """Rank a count that was hardly tried before others, then by the seconds per token."""
        pace = self._paces[count]
        return min(_TRIES, pace.num_tries), pace.seconds / (1 + self.expected(count))
