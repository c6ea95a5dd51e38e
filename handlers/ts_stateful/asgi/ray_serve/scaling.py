"""Autoscaling by open sessions and running turns.

Ray Serve's controller gets a copy of this module, so it imports nothing of this package.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["SESSIONS", "TURNS", "SessionScaling"]

SESSIONS = "sessions"
"""The metric of a replica: its open sessions."""

TURNS = "turns"
"""The metric of a replica: its running turns."""


class Metrics(Protocol):
    """The part of Ray Serve's `AutoscalingContext` that is read. Metrics are by name and replica."""

    aggregated_metrics: Mapping[str, Mapping[Any, float]] | None


class SessionScaling:
    """A policy: so many replicas that none has more than `sessions` open sessions and `turns` running turns.

    Ray Serve bounds the number by `min_replicas` and `max_replicas`, and applies its delays.
    """

    def __init__(self, sessions: int, turns: int) -> None:
        self._limits = {SESSIONS: sessions, TURNS: turns}

    def __call__(self, context: Metrics) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas, and no state."""
        metrics = context.aggregated_metrics or {}
        needed = [
            math.ceil(sum(metrics.get(name, {}).values()) / limit)
            for name, limit in self._limits.items()
        ]
        return max(1, *needed), {}
