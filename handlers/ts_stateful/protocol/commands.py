"""All requests that an engine takes."""

from __future__ import annotations

from ts_stateful.protocol.chat import Chat, RawPrompt
from ts_stateful.protocol.requests import Request
from ts_stateful.protocol.responses import Discard, Recall, Respond

__all__ = ["AnyRequest"]

AnyRequest = Request | Chat | RawPrompt | Respond | Recall | Discard
"""A request to an engine: one of the wire protocol, or the translation of another server's."""
