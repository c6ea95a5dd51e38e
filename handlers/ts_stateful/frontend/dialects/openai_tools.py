"""Tools, and the choice among them, as OpenAI's clients describe them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from ts_stateful.frontend.dialects.openai_fields import TOOL, FieldFilter, each_of
from ts_stateful.protocol.chat import Tool, ToolCall
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.strict_json import convert

__all__ = [
    "CALLS",
    "DEFINITIONS",
    "CallFields",
    "FunctionFields",
    "ToolChoice",
    "ToolDefinitions",
    "allowed_of",
    "calls_of",
    "forced_of",
    "supported_tools",
    "tools_of",
]

_Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}\Z")]


class FunctionFields(Struct, frozen=True):
    """The fields of a tool's function."""

    name: _Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    # Forced calls follow their schema, free ones are as the model writes them.
    strict: bool | None = None


class _ToolDefinition(Struct, frozen=True):
    function: FunctionFields
    type: Literal["function"] = "function"


class _NamedFunction(Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class _NamedTool(Struct, frozen=True, forbid_unknown_fields=True):
    function: _NamedFunction
    type: Literal["function"] = "function"


class _AllowedTools(Struct, frozen=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: list[_NamedTool]


ToolChoice = Literal["none", "auto", "required"] | _NamedTool
ToolDefinitions = Annotated[list[_ToolDefinition], Meta(max_length=128)]


class _CalledFunction(Struct, frozen=True):
    name: str
    arguments: str = "{}"


class _Call(Struct, frozen=True):
    id: str
    function: _CalledFunction
    type: Literal["function"] = "function"


_Kinds = tuple[type[Struct], type[Struct]]
DEFINITIONS: Final[_Kinds] = (_ToolDefinition, FunctionFields)
CALLS: Final[_Kinds] = (_Call, _CalledFunction)


class CallFields(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of a past message about calls."""

    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


def allowed_of(tools: object, choice: object) -> tuple[object, object]:
    """Return tools and choice as a chat has them: for `allowed_tools`, those that it names, and its mode.

    Raises:
        InvalidRequest: it is malformed, or there is no such tool.
    """
    if not (isinstance(choice, dict) and choice.get("type") == "allowed_tools"):
        return tools, choice
    try:
        asked: _AllowedTools = convert(choice.get("allowed_tools"), _AllowedTools)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, field="tool_choice") from None
    listed = tools if isinstance(tools, list) else []
    known, names = list(map(_name_of, listed)), [tool.function.name for tool in asked.tools]
    if missing := [name for name in names if name not in known]:
        raise _missing(missing[0])
    return [tool for tool in listed if _name_of(tool) in names], asked.mode


def _name_of(tool: object) -> object:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None


def tools_of(
    definitions: Sequence[_ToolDefinition] | None, choice: ToolChoice | None
) -> tuple[Tool, ...]:
    """Return the tools that a reply may call.

    Raises:
        InvalidRequest: two have the same name, or a schema is not usable.
    """
    if choice == "none":
        return ()
    made: list[Tool] = []
    for index, definition in enumerate(definitions or ()):
        asked = definition.function
        field = f"tools[{index}].function"
        if any(tool.name == asked.name for tool in made):
            raise InvalidRequest(
                "the name occurs twice; send each tool once", field=f"{field}.name"
            )
        try:
            made.append(Tool(asked.name, asked.description or "", asked.parameters or {}))
        except ValueError as error:
            raise InvalidRequest(str(error), field=f"{field}.parameters") from None
    return tuple(made)


def forced_of(choice: ToolChoice | None, tools: Sequence[Tool]) -> str | None:
    """Return the name of the tool that must be called, an empty name for any, None if there need be no call.

    Raises:
        InvalidRequest: there is no such tool.
    """
    if choice is None or choice in ("none", "auto"):
        return None
    name = choice.function.name if isinstance(choice, _NamedTool) else ""
    if not tools:
        raise InvalidRequest("there are no `tools` to choose from", field="tool_choice")
    if name and all(tool.name != name for tool in tools):
        raise _missing(name)
    return name


def _missing(name: str) -> InvalidRequest:
    return InvalidRequest(f"`tools` has no {name[:64]!r}", field="tool_choice")


def supported_tools(tools: object, kinds: _Kinds, fields: FieldFilter, place: str) -> object:
    """Return definitions or calls without fields that have no meaning here. What has a wrong type stays."""
    outer, inner = (kind.__struct_fields__ for kind in kinds)

    def read(tool: dict[str, Any], path: str) -> dict[str, Any]:
        wanted = fields.supported(tool, outer, TOOL, path)
        if isinstance(function := wanted.get("function"), dict):
            wanted["function"] = fields.supported(function, inner, TOOL, f"{path}function.")
        return wanted

    return each_of(tools, place, read)


def calls_of(fields: CallFields) -> tuple[ToolCall, ...]:
    """Return the calls of a past reply."""
    return tuple(
        ToolCall(call.id, call.function.name, call.function.arguments)
        for call in fields.tool_calls or ()
    )
