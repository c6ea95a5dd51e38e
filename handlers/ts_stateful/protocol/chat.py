"""Requests to an engine for clients of other protocols, which keep their conversations themselves."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from ts_stateful.protocol.requests import Prompt

__all__ = ["Chat", "RawPrompt", "Said", "Tool", "ToolCall"]


class ToolCall(Struct, frozen=True, omit_defaults=True):
    """A call of a function in a reply; `arguments` is JSON, as the model wrote it or the client repeats it."""

    id: str
    name: str
    arguments: str


class Said(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One message of a conversation: pieces of text, and a None in place of each image.

    A reply may have `tool_calls` and its `reasoning`; the message with a call's result, of role `tool`, its `tool_call_id`.
    """

    role: str
    parts: tuple[str | None, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str = ""


class Tool(Struct, frozen=True, omit_defaults=True):
    """A function that a reply may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}

    def __post_init__(self) -> None:
        try:
            msgspec.msgpack.encode(self.parameters)
        except (OverflowError, RecursionError):
            raise ValueError("a number in it is too large, or it is nested too deeply") from None


class Chat(Prompt, frozen=True, tag="chat", kw_only=True):
    """One turn as the whole conversation up to it, of which the session has a first part already.

    `images` are those of all messages, in their order. `parses` asks for the reply's parts: content, reasoning, calls of
    `tools`. `calls` forces calls: of any tool if it is empty, else of the named one; `parallel` allows several.
    """

    prompt: str = ""
    messages: tuple[Said, ...] = ()
    parses: bool = False
    tools: tuple[Tool, ...] = ()
    calls: str | None = None
    parallel: bool = True

    @property
    def num_chars(self) -> int:
        """Return the length of all text."""
        return sum(len(part) for said in self.messages for part in said.parts if part is not None)


class RawPrompt(Prompt, frozen=True, tag="raw", kw_only=True):
    """A text that the reply continues, without a chat template."""
