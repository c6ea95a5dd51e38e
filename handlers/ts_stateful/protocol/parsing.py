"""The settings by which a reply is parsed, and can be parsed again."""

from __future__ import annotations

from msgspec import Struct

from ts_stateful.protocol.chat import Tool

__all__ = ["Parsing"]


class Parsing(Struct, frozen=True, omit_defaults=True):
    """The beginning of a reply that the chat template wrote, and the tools that the reply may call."""

    prefix: str = ""
    tools: tuple[Tool, ...] = ()
