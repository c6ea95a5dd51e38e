"""Answers about conversations, and lists of items (https://platform.openai.com/docs/api-reference/conversations)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import structs

from ts_stateful.frontend.dialects.responses.ids import conversation_id
from ts_stateful.frontend.dialects.responses.note import decode_note
from ts_stateful.frontend.dialects.responses.resource import TurnDocument, listed_items
from ts_stateful.frontend.dialects.responses.responder import NotFound, ResponseResponder
from ts_stateful.protocol.errors import InvalidRequest

__all__ = [
    "ConversationResponder",
    "DeletedResponder",
    "ItemResponder",
    "ItemsResponder",
    "NewItemsResponder",
    "Page",
]

_MOST = 100
_USUAL = 20


class Page(NamedTuple):
    """The part of a list that is asked for: at most `limit` items, those after the item `after`."""

    limit: int = _USUAL
    after: str | None = None
    newest_first: bool = True

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Page:
        """Read the parameters of a URL.

        Raises:
            InvalidRequest: one is out of range.
        """
        limit, order = query.get("limit", str(_USUAL)), query.get("order", "desc")
        if not limit.isascii() or not limit.isdecimal() or not 1 <= int(limit[:9]) <= _MOST:
            raise InvalidRequest(f"it must be a number from 1 to {_MOST}", field="limit")
        if order not in ("asc", "desc"):
            raise InvalidRequest("it must be asc or desc", field="order")
        return cls(int(limit), query.get("after"), order == "desc")

    def cut(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the list's document."""
        if self.newest_first:
            items = items[::-1]
        if self.after is not None:
            places = [at for at, item in enumerate(items) if item["id"] == self.after]
            if not places:
                raise InvalidRequest("there is no item of this id", field="after")
            items = items[places[0] + 1 :]
        return _list(items[: self.limit], has_more=len(items) > self.limit)


def _list(items: list[dict[str, Any]], *, has_more: bool = False) -> dict[str, Any]:
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


def _turns(document: TurnDocument) -> list[TurnDocument]:
    """Return all turns up to this one, those that are no part of the API left out."""
    named = [structs.replace(one, session_id=document.session_id) for one in document.earlier]
    return [one for one in (*named, document) if one.note]


class ItemsResponder(ResponseResponder):
    """The items of a conversation, or those that a response is made from."""

    def __init__(self, missing: NotFound, page: Page, *, of_response: bool) -> None:
        super().__init__(missing)
        self._page = page
        self._of_response = of_response

    def document(self, answer: TurnDocument) -> dict[str, Any]:
        """See `ResponseResponder`."""
        return self._page.cut(_all_items(answer, of_response=self._of_response))


def _all_items(answer: TurnDocument, *, of_response: bool = False) -> list[dict[str, Any]]:
    *earlier, last = _turns(answer)
    items = [item for turn in earlier for item in listed_items(turn, with_output=True)]
    return items + listed_items(last, with_output=not of_response)


class ItemResponder(ResponseResponder):
    """One item of a conversation."""

    def __init__(self, missing: NotFound, item_id: str) -> None:
        super().__init__(missing)
        self._item_id = item_id

    def document(self, answer: TurnDocument) -> dict[str, Any] | NotFound:
        """See `ResponseResponder`."""
        found = [item for item in _all_items(answer) if item["id"] == self._item_id]
        return found[0] if found else NotFound("Item", self._item_id)


class NewItemsResponder(ResponseResponder):
    """The items that were just added."""

    items_field = "items"

    def document(self, answer: TurnDocument) -> dict[str, Any]:
        """See `ResponseResponder`."""
        return _list(listed_items(answer, with_output=False))


class ConversationResponder(ResponseResponder):
    """The object of a conversation."""

    items_field = "items"

    def document(self, answer: TurnDocument) -> dict[str, Any] | NotFound:
        """See `ResponseResponder`."""
        notes = [decode_note(turn.note) for turn in _turns(answer)]
        if notes[0].kind != "conversation" and self._missing is not None:
            return self._missing
        metadata = [note.metadata for note in notes if note.metadata is not None]
        return {
            "id": conversation_id(answer.session_id or ""),
            "object": "conversation",
            "created_at": notes[0].created_at,
            "metadata": metadata[-1],
        }


class DeletedResponder(ResponseResponder):
    """The answer to a deletion of a `kind` of object."""

    def __init__(self, missing: NotFound, name: str, kind: str) -> None:
        super().__init__(missing)
        self._document = {"id": name, "object": kind, "deleted": True}

    def document(self, answer: TurnDocument) -> dict[str, Any]:
        """See `ResponseResponder`."""
        return self._document
