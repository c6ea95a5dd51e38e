"""A rate of tokens, which a pause saves up for up to a minute."""

from __future__ import annotations

from ts_stateful.clock import Clock

__all__ = ["TokenBucket"]

_MINUTE_S = 60.0
_ROUNDING = 1e-6  # of a token


class TokenBucket:
    """Holds up to `per_minute` tokens, at first that many, and gets them back at this rate.

    Tokens are taken when they were computed, so there may be fewer than none.
    """

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at = clock.monotonic()

    def take(self, num_tokens: int) -> None:
        """Take tokens that were computed."""
        self._refill()
        self._level -= num_tokens

    def wait_s(self) -> float:
        """Return the seconds until there is a token; 0 if there is one."""
        self._refill()
        missing = 1.0 - self._level
        return missing * _MINUTE_S / self._per_minute if missing > _ROUNDING else 0.0

    def _refill(self) -> None:
        now = self._clock.monotonic()
        gained = (now - self._at) * self._per_minute / _MINUTE_S
        self._level, self._at = min(float(self._per_minute), self._level + gained), now
