"""Grammars of replies that must call tools."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

from transformers.utils.chat_parsing.response_templates import ResponseTemplateField

from ts_stateful.language.grammar.json_options import JSON_OPTIONS
from ts_stateful.language.text.reply_parser import ReplyTemplate
from ts_stateful.protocol.chat import Tool
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.response_format import Grammar

__all__ = ["forced_calls"]

_WHOLE = {"type": "function", "function": "{content}"}  # the JSON of a call has name and arguments
_BLANKS = re.compile(r"(\\s[*+?])+")


def forced_calls(
    template: ReplyTemplate,
    tools: Sequence[Tool],
    *,
    special: Collection[str],
    parallel: bool,
) -> Grammar:
    """Return a grammar of calls of these tools: one, or with `parallel` one or more.

    `special` are the tokens that no ordinary text has.

    Raises:
        InvalidRequest: the model writes calls in another form than JSON between two marks.
    """
    field = template.response.fields.get("tool_calls")
    marks = None if field is None else _marks(field)
    if marks is None:
        raise InvalidRequest(
            "this model's calls cannot be forced: its response template has none that are JSON between two marks;"
            " send `auto`",
            field="tool_choice",
        )
    begin, end = (_token(mark, special) for mark in marks)
    calls = {
        "x-guidance": JSON_OPTIONS,
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.name},
                    "arguments": tool.parameters or {"type": "object"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for tool in tools
        ],
    }
    more = ' ("\\n" call)*' if parallel else ""
    return Grammar(
        f'start: call{more}\ncall: {begin} "\\n" body "\\n" {end}\nbody: %json {json.dumps(calls)}\n'
    )


def _marks(field: ResponseTemplateField) -> tuple[str, str] | None:
    if field.content != "json" or field.transform != _WHOLE or not field.close_literals:
        return None
    begin = field.open_literals[0] if field.open_literals else _literal(field.open_re.pattern)
    return None if begin is None else (begin, field.close_literals[0])


def _literal(pattern: str) -> str | None:
    """Return the text that a pattern stands for, blanks at its beginning left out; None if it is no single text."""
    text = pattern[found.end() :] if (found := _BLANKS.match(pattern)) else pattern
    return None if re.search(r"[\\^$.|?*+()\[\]{}]", text) else text


def _token(mark: str, special: Collection[str]) -> str:
    return mark if mark in special else json.dumps(mark)
