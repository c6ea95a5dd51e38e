"""The tools of a response, and the form of its text: those of a chat, without its nesting."""

from __future__ import annotations

from typing import Any

from ts_stateful.frontend.dialects.openai_fields import FieldFilter, FieldTable
from ts_stateful.frontend.dialects.openai_format import read_format
from ts_stateful.frontend.dialects.openai_tools import (
    FunctionFields,
    ToolChoice,
    ToolDefinitions,
    allowed_of,
    forced_of,
    tools_of,
)
from ts_stateful.protocol.chat import Tool
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.response_format import ResponseFormat
from ts_stateful.protocol.strict_json import convert

__all__ = ["read_form", "read_tools"]

_TOOL = FieldTable(repeated=("type",))


def read_tools(
    asked: list[dict[str, Any]], choice: object, fields: FieldFilter
) -> tuple[tuple[Tool, ...], str | None]:
    """Return the tools, and the name of the one that must be called: empty for any, None if there need be no call.

    Raises:
        InvalidRequest: one is malformed, or of a type that is not supported; `field` names it.
    """
    for index, tool in enumerate(asked):
        if tool.get("type") != "function":
            raise InvalidRequest(
                "this server has no tools of its own; only those of type `function` are supported",
                field=f"tools[{index}].type",
            )
    names = FunctionFields.__struct_fields__
    nested: object = [
        {"function": fields.supported(tool, names, _TOOL, f"tools[{index}].")}
        for index, tool in enumerate(asked)
    ]
    nested, choice = allowed_of(nested, _nested_choice(choice))
    chosen = _choice(choice)
    try:
        tools = tools_of(convert(nested, ToolDefinitions), chosen)
    except InvalidRequest as error:
        path = (error.field or "").replace(".function", "")
        field = path if path.startswith("tools") else f"tools{path}"
        raise InvalidRequest(error.message, field=field) from None
    return tools, forced_of(chosen, tools)


def _nested_choice(choice: object) -> object:
    """Return a choice as a chat has it."""
    if not isinstance(choice, dict):
        return choice
    rest = {**choice}
    kind = rest.pop("type", "function")
    if kind != "allowed_tools":
        return {"type": kind, "function": rest}
    if isinstance(rest.get("tools"), list):
        rest["tools"] = list(map(_nested_choice, rest["tools"]))
    return {"type": kind, kind: rest}


def _choice(choice: object) -> ToolChoice | None:
    try:
        made: ToolChoice | None = convert(choice, ToolChoice | None)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, field="tool_choice") from None
    return made


def read_form(asked: object) -> ResponseFormat | None:
    """Return the form of a reply's text, None for any.

    Raises:
        InvalidRequest: it is malformed.
    """
    if asked is None:
        return None
    if not isinstance(asked, dict):
        raise InvalidRequest("expected an object", field="text.format")
    if asked.get("type") == "text":
        return None
    nested = asked
    if asked.get("type") == "json_schema":
        inner = {name: value for name, value in asked.items() if name != "type"}
        nested = {"type": "json_schema", "json_schema": inner}
    try:
        return read_format(nested)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, field="text.format") from None
