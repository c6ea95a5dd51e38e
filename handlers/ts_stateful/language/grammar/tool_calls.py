"""Grammars of replies that call tools."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from ts_stateful.language.grammar.json_options import JSON_OPTIONS
from ts_stateful.language.text.reply_parser import ReplyTemplate
from ts_stateful.protocol.chat import Tool
from ts_stateful.protocol.response_format import Grammar

__all__ = ["grammar_of_calls"]


def grammar_of_calls(
    template: ReplyTemplate,
    tools: Sequence[Tool],
    *,
    special: Collection[str],
    parallel: bool,
) -> Grammar | None:
    """Return a grammar of calls of these tools: one, or with `parallel` one or more.

    `special` are the tokens that no ordinary text has. Return None if the model writes calls in another form than JSON between
    two marks.
    """
    if template.call_marks is None:
        return None
    begin, end = (_token(mark, special) for mark in template.call_marks)
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


def _token(mark: str, special: Collection[str]) -> str:
    return mark if mark in special else json.dumps(mark)
