"""A key of the planned file, with the reason for its value.

Owns how settings become YAML that people read.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

__all__ = ["Setting", "comment", "dump", "render"]

_WIDTH = 108


class Setting(NamedTuple):
    """`key: value`, and why. Without a value it is a comment about a key that is left out."""

    key: str
    value: int | str | bool | None
    reason: str


def render(settings: Sequence[Setting]) -> str:
    """The settings, each under its reason."""
    return "".join(comment(setting.reason) + _line(setting) for setting in settings)


def dump(document: Mapping[str, Any]) -> str:
    """Keys as they are."""
    return "".join(_dump(key, value) for key, value in document.items())


def comment(text: str) -> str:
    """A comment of as many lines as it takes; what could end a line within it is replaced."""
    harmless = "".join(character if character.isprintable() else "?" for character in text)
    lines = textwrap.wrap(harmless, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "".join(f"# {line}\n" for line in lines)


def _line(setting: Setting) -> str:
    if setting.value is None:
        return f"# {setting.key}: left out\n"
    return _dump(setting.key, setting.value)


def _dump(key: str, value: Any) -> str:
    # The innermost of those take a line each.
    flow = None if isinstance(value, (dict, list)) else False
    return yaml.safe_dump(
        {key: value}, sort_keys=False, default_flow_style=flow, width=_WIDTH, allow_unicode=True
    )
