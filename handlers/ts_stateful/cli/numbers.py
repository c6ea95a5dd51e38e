"""Numbers and names in options, as types of argparse."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ts_stateful.config.sizes import parse_bytes

__all__ = ["filled", "num_bytes", "positive", "whole"]

_MAX, _MAX_BYTES = 1_000_000_000, 1 << 50


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


def filled(text: str) -> str:
    """Refuse an empty name: that of a shell's variable which is not set would count as none."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; is a variable unset?")
    return text


def positive(text: str) -> float:
    """Convert a number above 0, for instance of seconds."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < value <= _MAX:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {_MAX:,}")
    return value


def num_bytes(text: str) -> int:
    """Convert a size as 80GiB or 24GB."""
    try:
        return whole(1, _MAX_BYTES)(str(parse_bytes(text)))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
