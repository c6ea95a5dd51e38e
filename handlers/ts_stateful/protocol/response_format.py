"""The forms that a reply can be given."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

__all__ = ["Choice", "Grammar", "JsonObject", "JsonSchema", "Regex", "ResponseFormat"]

_MAX_BYTES = 65_536
_Text = Annotated[str, Meta(min_length=1, max_length=_MAX_BYTES)]
_Option = Annotated[str, Meta(min_length=1, max_length=1024)]


class _Format(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    pass


class JsonObject(_Format, frozen=True, tag="json_object"):
    """Any JSON object."""


class JsonSchema(_Format, frozen=True, tag="json_schema"):
    """A JSON document of this schema; https://json-schema.org describes it."""

    schema: dict[str, Any]

    def __post_init__(self) -> None:
        try:
            num_bytes = len(msgspec.msgpack.encode(self.schema))
        except (OverflowError, RecursionError):
            raise ValueError("a number in it is too large, or it is nested too deeply") from None
        if num_bytes > _MAX_BYTES:
            raise ValueError(f"a schema has at most {_MAX_BYTES:,} bytes")


class Regex(_Format, frozen=True, tag="regex"):
    """A text that a regular expression matches as a whole, in the syntax of Rust's `regex`."""

    pattern: _Text


class Choice(_Format, frozen=True, tag="choice"):
    """One of these texts."""

    options: Annotated[tuple[_Option, ...], Meta(min_length=1, max_length=1000)]


class Grammar(_Format, frozen=True, tag="grammar"):
    """A text of a context-free grammar, in the syntax of Lark or GBNF."""

    grammar: _Text


ResponseFormat = JsonObject | JsonSchema | Regex | Choice | Grammar
