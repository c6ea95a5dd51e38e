"""Bytes for people: kB, MB, GB are powers of 1,000; KiB, MiB, GiB powers of 1,024."""

from __future__ import annotations

import re

__all__ = ["parse_bytes", "show_bytes"]

_QUANTITY = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*(?:([kmgt])(i?))?b?", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def parse_bytes(text: str) -> int:
    """Parse a number of bytes like `80GiB`, `24 GB`, `512Mi`, `2_000_000_000`.

    Raises:
        ValueError: the text has another form.
    """
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a number of bytes; write 80GiB, 24GB or 2_000_000_000")
    number, unit, binary = found.groups()
    base = 1024 if binary else 1000
    return round(float(number) * base ** _POWERS[unit.lower()]) if unit else round(float(number))


def show_bytes(num_bytes: int) -> str:
    """Write three digits, in powers of 1,024: `512 bytes`, `4.5 MiB`, `78.4 GiB`, `1,250 TiB`."""
    size, power = float(num_bytes), 0
    while size >= 999.5 and power < len(_UNITS) - 1:
        size, power = size / 1024, power + 1
    digits = 0 if power == 0 or size >= 99.95 else 1 if size >= 9.995 else 2
    number = f"{size:,.{digits}f}"
    return f"{number.rstrip('0').rstrip('.') if digits else number} {_UNITS[power]}"
