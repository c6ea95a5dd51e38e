"""The settings of a session's turns."""

from __future__ import annotations

from msgspec.structs import fields

from ts_stateful.client.session import PromptOptions
from ts_stateful.protocol.requests import Prompt


def test_every_setting_of_a_prompt_can_be_given() -> None:
    """The others are arguments of `prompt`, or belong to the session."""
    others = {"session_id", "prompt", "images", "audio", "stream", "turn", "adapter"}
    assert PromptOptions.__optional_keys__ == {field.name for field in fields(Prompt)} - others
