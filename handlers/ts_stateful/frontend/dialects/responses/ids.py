"""The ids of responses, conversations and items: names of sessions and turns."""

from __future__ import annotations

import re
from typing import NamedTuple

from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.session_ids import check_session_id

__all__ = ["ResponseId", "conversation_id", "session_of_conversation"]

_RESPONSE = re.compile(r"resp_(.+)_([1-9][0-9]{0,8})")
_ITEM = re.compile(r"(?:msg|rs|fc|fco)_(.+)_([1-9][0-9]{0,8})_i?[0-9]{1,9}")
_CONVERSATION = "conv_"


class ResponseId(NamedTuple):
    """A response: a session and the number of a turn of it."""

    session_id: str
    turn: int

    def __str__(self) -> str:
        """Return the id as clients have it."""
        return f"resp_{self.session_id}_{self.turn}"

    @classmethod
    def parse(cls, text: str) -> ResponseId | None:
        """Return the response of this id; None if it is none."""
        return cls._of(_RESPONSE.fullmatch(text))

    @classmethod
    def of_item(cls, text: str) -> ResponseId | None:
        """Return the response that the item of this id belongs to; None if it is none."""
        return cls._of(_ITEM.fullmatch(text))

    @classmethod
    def _of(cls, found: re.Match[str] | None) -> ResponseId | None:
        if found is None or not _is_session(found[1]):
            return None
        return cls(found[1], int(found[2]))

    def item(self, kind: str, index: int | str) -> str:
        """Return the id of an item of the response; `kind` is its prefix."""
        return f"{kind}_{self.session_id}_{self.turn}_{index}"


def conversation_id(session_id: str) -> str:
    """Return the id of a session as a conversation."""
    return f"{_CONVERSATION}{session_id}"


def session_of_conversation(text: str) -> str | None:
    """Return the session of a conversation's id; None if it is none."""
    session_id = text.removeprefix(_CONVERSATION)
    return session_id if session_id != text and _is_session(session_id) else None


def _is_session(text: str) -> bool:
    try:
        check_session_id(text)
    except InvalidRequest:
        return False
    return True
