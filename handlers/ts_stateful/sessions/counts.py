"""Counts of the changes in a session table since the engine's start."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TableCounts"]


@dataclass
class TableCounts:
    """Sessions by the way in which they came and went, those of single requests included.

    `evicted` counts each time that a session's tensors left the device for want of room.
    """

    opened: int = 0
    adopted: int = 0
    closed: int = 0
    expired: int = 0
    parked: int = 0
    evicted: int = 0
