"""Ranges of numbers that many settings have."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

__all__ = ["Count", "Natural", "Positive"]

Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
