"""Grammars of replies that call tools."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from ts_stateful.language.grammar.compiler import JSON_OPTIONS
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
    more = ' ("\\n" call)*' if parallel else ""
    bodies = " | ".join(f"body{index}" for index in range(len(tools)))
    rules = [f"start: call{more}", f'call: {begin} "\\n" ({bodies}) "\\n" {end}']
    for index, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name)}, "arguments": '
        # A schema of its own, because references in it begin at its root.
        schema = {**(tool.parameters or {"type": "object"}), "x-guidance": JSON_OPTIONS}
        rules.append(f'body{index}: {json.dumps(head)} arguments{index} "}}"')
        rules.append(f"arguments{index}: %json {json.dumps(schema)}")
    return Grammar("\n".join(rules))


def _token(mark: str, special: Collection[str]) -> str:
    return mark if mark in special else json.dumps(mark)
