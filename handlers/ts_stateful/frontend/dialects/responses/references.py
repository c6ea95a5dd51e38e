"""Items that a client names instead of sending them: it repeats the conversation, of which the server has its own replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ts_stateful.frontend.dialects.openai_fields import FieldFilter
from ts_stateful.frontend.dialects.responses.ids import ResponseId
from ts_stateful.frontend.dialects.responses.items import read_items
from ts_stateful.protocol.chat import Said

__all__ = ["Reference", "find_reference"]

_KIND = "item_reference"


class Reference(NamedTuple):
    """The response that the last reference is about, the messages sent up to it and its calls, and the number of their items.

    Vercel's AI SDK refers to the reasoning and the text of a reply, and sends its calls.
    """

    response: ResponseId
    before: tuple[Said, ...]
    num_items: int


def find_reference(items: str | Sequence[dict[str, Any]], fields: FieldFilter) -> Reference | None:
    """Return the last reference of an input to an item of a response; None if there is none.

    Raises:
        InvalidRequest: an item before it is malformed.
    """
    if isinstance(items, str):
        return None
    places = [at for at, item in enumerate(items) if item.get("type") == _KIND]
    found = ResponseId.of_item(str(items[places[-1]].get("id"))) if places else None
    if found is None:
        return None
    end = places[-1] + 1
    while end < len(items) and items[end].get("type") == "function_call":  # of the same reply
        end += 1
    before = read_items([item for item in items[:end] if item.get("type") != _KIND], fields)
    return Reference(found, before.messages, end)
