"""Ranges of numbers that many settings have."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

__all__ = ["LONGEST_S", "Count", "Duration", "Natural", "Positive"]

# 23 days: `poll` takes no more milliseconds than 2^31, and JSON has no infinity.
LONGEST_S = 2_000_000

Positive = Annotated[float, Meta(gt=0, le=LONGEST_S)]
Duration = Annotated[float, Meta(ge=0, le=LONGEST_S)]
Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
