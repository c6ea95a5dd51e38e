"""The time, for everything that a test may want to move."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Final

__all__ = ["SYSTEM_CLOCK", "Clock", "rfc3339"]


class Clock:
    """Monotonic and Unix time, both in seconds."""

    def monotonic(self) -> float:
        """Return the time by which deadlines are kept."""
        return time.monotonic()

    def unix(self) -> float:
        """Return the Unix time, which other processes share."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def unix_of(self, at: float) -> float:
        """Convert a monotonic time to Unix time."""
        return self.unix() + at - self.monotonic()

    def monotonic_of(self, unix: float) -> float:
        """Convert a Unix time to monotonic time."""
        return self.monotonic() + unix - self.unix()

    def rfc3339(self, at: float) -> str:
        """Write a monotonic time as RFC 3339 does, in UTC and whole seconds."""
        return rfc3339(self.unix_of(at))


def rfc3339(unix: float) -> str:
    """Write a Unix time as RFC 3339 does, in UTC and whole seconds."""
    return datetime.fromtimestamp(int(unix), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


SYSTEM_CLOCK: Final = Clock()
