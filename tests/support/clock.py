"""A clock that moves only when a test moves it."""

from __future__ import annotations

from typing import Final

from ts_stateful.clock import Clock

__all__ = ["FakeClock"]

_EPOCH: Final = 1_699_999_000.0


class FakeClock(Clock):
    """Stands at `now`, in seconds; sleeping moves it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        """See `Clock`."""
        return self.now

    def unix(self) -> float:
        """See `Clock`."""
        return _EPOCH + self.now

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        self.now += seconds
