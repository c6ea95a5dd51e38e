"""The number of tokens to guess before a pass: the one that gave most tokens a second of late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["COUNTS", "GuessCount"]

COUNTS: Final = (0, 2, 4, 6)
_PERIOD: Final = 128  # steps until another count is tried again
_TRIES: Final = 4
_WEIGHT: Final = 0.2  # of the last step in what a count took and gave
_OUTLIER: Final = 2.0  # times what a count takes: a longer step was held up by something else


class _Rate:
    """The seconds and the tokens of steps, the last ones weighing most."""

    def __init__(self) -> None:
        self.num_tries = 0
        self.seconds = self.tokens = 0.0

    def add(self, seconds: float, tokens: int) -> None:
        weight = max(_WEIGHT, 1 / (1 + self.num_tries))
        if self.num_tries:
            seconds = min(seconds, _OUTLIER * self.seconds)
            self.seconds = min(self.seconds, _OUTLIER * seconds)
        self.seconds += weight * (seconds - self.seconds)
        self.tokens += weight * (tokens - self.tokens)
        self.num_tries += 1

    @property
    def rank(self) -> tuple[int, float]:
        """The lowest is chosen: of a count that was hardly tried, then by the seconds per token."""
        return min(_TRIES, self.num_tries), self.seconds / max(self.tokens, 1e-9)


class GuessCount:
    """The count that steps of so many turns use. Memory and processor change their speed by the hour, and texts differ."""

    def __init__(self, counts: Sequence[int] = COUNTS) -> None:
        self._rates = {count: _Rate() for count in counts}
        self._num_steps = 0

    def choose(self, most: int) -> int:
        """Return the count of the next step, up to `most`: the best one, or now and then another to try again."""
        self._num_steps += 1
        rates = self._rates
        if self._num_steps % _PERIOD == 0:
            rates[[*rates][self._num_steps // _PERIOD % len(rates)]] = _Rate()
        return min((count for count in rates if count <= most), key=lambda each: rates[each].rank)

    def learn(self, count: int, seconds: float, tokens: int) -> None:
        """Take what a step took and how many tokens all its turns got."""
        self._rates[count].add(seconds, tokens)

    def expected(self, count: int, num_turns: int) -> float:
        """Return the guesses of a turn that are likely to be right."""
        return max(0.0, self._rates[count].tokens / num_turns - 1)
