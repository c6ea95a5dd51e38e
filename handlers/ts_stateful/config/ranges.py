"""The base of settings, and ranges of numbers and forms of texts that many of them have."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct

__all__ = ["LONGEST_S", "Count", "Duration", "Natural", "Positive", "Settings", "has_sound_host"]

# 23 days: `poll` takes no more milliseconds than 2^31, and JSON has no infinity.
LONGEST_S = 2_000_000

Positive = Annotated[float, Meta(gt=0, le=LONGEST_S)]
Duration = Annotated[float, Meta(ge=0, le=LONGEST_S)]
Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]


class Settings(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Settings below `handler`, where an unknown key is an error."""


def has_sound_host(url: str) -> bool:
    """Return True if the host of a URL is well-formed, with a port from 0 to 65535 or without one. True for a path."""
    try:
        _ = urlsplit(url).port
    except ValueError:
        return False
    return True
