"""The fields of messages with tool calls, as chat templates expect them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ts_stateful.protocol.chat import ToolCall

__all__ = ["call_fields"]


def call_fields(calls: Sequence[ToolCall], call_id: str | None = None) -> str:
    """Return what templates get of calls, arguments as an object if they are one."""
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


def _arguments(text: str) -> object:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return document if isinstance(document, dict) else text
