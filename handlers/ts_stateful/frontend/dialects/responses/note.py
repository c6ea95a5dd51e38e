"""The note that a turn keeps of its response: what the answer repeats, and the input items."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

__all__ = ["Note", "decode_note", "encode_note"]


class Note(Struct, frozen=True, omit_defaults=True):
    """The note of a `response`, of a new `conversation`, or of `items` that were added to one.

    `created_at` is in seconds of Unix time, as OpenAI's clients expect it. `fields` are those of the response's object that do
    not follow from the turn. `metadata` is a conversation's, None if it stays.
    """

    kind: Literal["response", "conversation", "items"]
    created_at: int
    items: tuple[dict[str, Any], ...] = ()
    fields: dict[str, Any] = {}
    metadata: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(Note)


def encode_note(note: Note) -> str:
    """Return the text that an engine keeps."""
    return msgspec.json.encode(note).decode()


def decode_note(text: str) -> Note:
    """Return the note of a turn."""
    return _decoder.decode(text)
