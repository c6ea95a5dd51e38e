"""The kind of JSON that replies may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

__all__ = ["JSON_OPTIONS"]

JSON_OPTIONS: Final[JsonCompileOptions] = {
    "coerce_one_of": True,
    # Bounded, or a model could go on with blanks for ever.
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,24}",
}
