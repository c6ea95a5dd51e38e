"""Numbers among the options of the command: which are taken, and what is said of the others.

Owns the types that argparse is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["positive", "whole"]

_MAX = 1_000_000_000


def whole(least: int, most: int = _MAX) -> Callable[[str], int]:
    """A type of argparse: a whole number in these bounds, which are taken as well."""

    def parsed(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number, or not a whole one") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least} to {most:,}")
        return value

    return parsed


def positive(text: str) -> float:
    """A type of argparse: a number above 0, seconds for instance."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 < value <= _MAX:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {_MAX:,}")
    return value
