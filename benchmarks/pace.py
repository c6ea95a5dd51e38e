"""Speed of steps: the statistics that are reported of many of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Pace"]


class Pace(NamedTuple):
    """Steps a second of all sequences together, and a step's latency in milliseconds."""

    steps_per_s: float
    median_ms: float
    p99_ms: float

    @classmethod
    def of(cls, latencies_s: Sequence[float], taken_s: float) -> Pace:
        """Return the pace of steps taken within `taken_s`; the percentile is the smallest latency that 99 % do not exceed."""
        ordered = sorted(latencies_s)
        return cls(
            len(ordered) / taken_s,
            1000 * statistics.median(ordered),
            1000 * ordered[math.ceil(0.99 * len(ordered)) - 1],
        )
