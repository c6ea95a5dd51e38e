"""The fields of messages with tool calls, and with their results, as chat templates expect them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ts_stateful.protocol.chat import ToolCall

__all__ = ["call_fields", "name_results"]

_MAX_DEPTH = 64  # of objects and arrays in each other


def call_fields(calls: Sequence[ToolCall], call_id: str | None = None) -> str:
    """Return what templates get of calls, arguments as an object if they are one that can be written again."""
    made: dict[str, Any] = {}
    if calls:
        made["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in calls
        ]
    if call_id is not None:
        made["tool_call_id"] = call_id
    return json.dumps(made, ensure_ascii=False) if made else ""


def name_results(messages: Iterable[dict[str, Any]]) -> None:
    """Give the result of each call the `name` of the function, which some templates write and no client has to send."""
    names: dict[str, str] = {}
    for message in messages:
        calls = [call for call in message.get("tool_calls", ()) if call["id"]]  # some are ""
        names |= {call["id"]: call["function"]["name"] for call in calls}
        name = names.get(message.get("tool_call_id", ""))
        if name is not None:
            message["name"] = name


def _arguments(text: str) -> object:
    try:
        document = json.loads(text)
        json.dumps(document, ensure_ascii=False).encode()  # fails for half a surrogate pair
    except (ValueError, RecursionError):
        return text
    return document if isinstance(document, dict) and _is_shallow(document) else text


def _is_shallow(document: object) -> bool:
    """Return True if code that goes down level by level can take a document."""
    level: list[Any] = [document]
    for _ in range(_MAX_DEPTH):
        parts = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for part in parts for one in part if isinstance(one, dict | list)]
        if not level:
            return True
    return False
