"""What is asked of an engine with a session `s`."""

from __future__ import annotations

from typing import Any

from tests.support.harness import Harness
from ts_stateful.protocol.requests import Prompt

__all__ = ["ask", "busy", "code"]


def code(document: dict[str, Any]) -> str:
    error = document["error"]
    return str(error["code"])


def busy(harness: Harness) -> bool:
    return harness.engine.busy


def ask(text: str = "Hello", **fields: Any) -> Prompt:
    return Prompt(
        session_id="s", prompt=text, **{"max_new_tokens": 12, "ignore_eos": True, **fields}
    )
