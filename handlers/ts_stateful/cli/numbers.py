"""Numbers in options, as types of argparse."""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["positive", "whole"]

_MAX = 1_000_000_000


def whole(least: int, most: int = _MAX) -> Callable[[str], int]:
    """Return a type for whole numbers from `least` to `most`."""

    def parsed(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least} to {most:,}")
        return value

    return parsed


def positive(text: str) -> float:
    """Convert a number above 0, for instance of seconds."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < value <= _MAX:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {_MAX:,}")
    return value
