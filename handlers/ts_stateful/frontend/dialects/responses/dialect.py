"""The paths of the Responses API, after `v1/`: responses, conversations, and their items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import structs

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.frontend.dialects.dialect import Translation, Unnamed
from ts_stateful.frontend.dialects.openai_fields import FieldFilter
from ts_stateful.frontend.dialects.openai_responder import OpenAiResponder
from ts_stateful.frontend.dialects.own import OwnResponder
from ts_stateful.frontend.dialects.responses.ids import ResponseId, session_of_conversation
from ts_stateful.frontend.dialects.responses.items import Items, read_items
from ts_stateful.frontend.dialects.responses.listing import (
    ConversationResponder,
    DeletedResponder,
    ItemResponder,
    ItemsResponder,
    NewItemsResponder,
    Page,
)
from ts_stateful.frontend.dialects.responses.note import Note, encode_note
from ts_stateful.frontend.dialects.responses.request import read_conversation, read_create
from ts_stateful.frontend.dialects.responses.responder import (
    CountResponder,
    CreatedResponder,
    NotFound,
    ResponseResponder,
    StreamResponder,
)
from ts_stateful.frontend.dialects.served_model import ServedModelName, UnknownPath
from ts_stateful.frontend.parsing.body import RequestBody
from ts_stateful.protocol.chat import Discard, Recall, Respond
from ts_stateful.protocol.errors import InvalidRequest, SessionNotFound
from ts_stateful.protocol.requests import Close

__all__ = ["ResponsesApi"]

_PATHS = ("v1/responses", "v1/conversations")


class ResponsesApi:
    """The dialect of clients of the Responses API, for the `served` model and its adapters."""

    responder = OpenAiResponder()

    def __init__(
        self, served: ServedModelName, *, strict: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._served = served
        self._strict = strict
        self._clock = clock

    def matches(self, body: RequestBody) -> bool:
        """See `Dialect`; the path decides."""
        path = body.headers.path.strip("/")
        return path in _PATHS or path.startswith(tuple(f"{one}/" for one in _PATHS))

    def read(self, body: RequestBody) -> Translation:
        """See `Dialect`."""
        _, kind, *rest = body.headers.path.strip("/").split("/")
        made = (
            self._of_response(body, rest)
            if kind == "responses"
            else self._of_conversation(body, rest)
        )
        if made is None:
            raise UnknownPath(
                "unknown path or method; this server has responses, conversations, and their items"
            )
        return made

    def _of_response(self, body: RequestBody, rest: list[str]) -> Translation | None:
        method = _method(body)
        if not rest:
            return self._create(body) if method == "POST" else None
        if rest == ["input_tokens"] and method == "POST":
            return self._create(body, counts=True)
        if rest == ["compact"]:
            raise UnknownPath(
                "this server compacts no conversation; ask for a summary, and begin a new response with it"
            )
        name, *rest = rest
        query = _parameters(body)
        found = ResponseId.parse(name)
        missing = NotFound("Response", name)
        if found is None:
            return _direct(missing)
        session_id, turn = found
        if rest == ["cancel"]:
            recall = Recall(session_id=session_id, turn=turn, cancels=True)
            return _known(recall, ResponseResponder(missing))
        if rest == ["input_items"]:
            recall = Recall(session_id=session_id, turn=turn, all=True)
            return _known(recall, ItemsResponder(missing, Page.of(query), of_response=True))
        if not rest and method == "DELETE":
            discard = Discard(session_id=session_id, turn=turn)
            return _known(discard, DeletedResponder(missing, name, "response"))
        if rest:
            return None
        stream, after = _flag(query, "stream"), _number(query.get("starting_after", "-1"))
        recall = Recall(session_id=session_id, turn=turn, stream=stream)
        if not stream:
            return _known(recall, ResponseResponder(missing))
        return _known(recall, StreamResponder(None, missing, starting_after=after))

    def _create(self, body: RequestBody, *, counts: bool = False) -> Translation:
        """Translate a request for a response. One that `counts` is computed as far as its first token, and not stored."""
        document, model = self._served.taken_from(body.document)
        if counts:
            document |= {"stream": False, "store": False, "max_output_tokens": 1}
        framed = body.headers.is_http
        if not framed:
            document = {**document, "stream": True}
        previous = document.get("previous_response_id")
        if previous is not None:
            kind, code = "Previous response", "previous_response_not_found"
            missing = NotFound(kind, str(previous), code, "previous_response_id")
        else:
            named = document.get("conversation")
            name = named.get("id") if isinstance(named, dict) else named
            missing = NotFound("Conversation", str(name), field="conversation")
        try:
            asked = read_create(document, model, self._clock, strict=self._strict)
        except SessionNotFound:
            return _direct(missing)
        _check_new(body, asked.request.session_id)
        continued = missing if asked.request.session_id else None
        responder: ResponseResponder
        if counts:
            responder = CountResponder(continued, asked.image_fields)
        elif asked.request.stream:
            responder = StreamResponder(asked.note, continued, asked.image_fields, framed=framed)
        else:
            responder = CreatedResponder(asked.note, continued, asked.image_fields)
        request = structs.replace(asked.request, adapter=self._served.adapter(model))
        unnamed = Unnamed.OPENS
        if not asked.stores and framed:
            unnamed = Unnamed.EPHEMERAL
        elif not asked.stores:  # it lives as long as the WebSocket, which closes its session
            request = structs.replace(request, forks=request.session_id is not None)
        return Translation(request, responder, unnamed, ignored=asked.ignored)

    def _of_conversation(self, body: RequestBody, rest: list[str]) -> Translation | None:
        method = _method(body)
        if not rest:
            return self._add(body) if method == "POST" else None
        name, *rest = rest
        session_id = session_of_conversation(name)
        missing = NotFound("Conversation", name)
        if session_id is None:
            return _direct(missing)
        recall = Recall(session_id=session_id, turn=None, all=True)
        is_items, item_ids = rest[:1] == ["items"], rest[1:]
        if not rest and method == "DELETE":
            close = Close(session_id=session_id)
            return _known(close, DeletedResponder(missing, name, "conversation.deleted"))
        if not rest and method == "POST":
            return self._add(body, session_id, missing, only="metadata")
        if not rest and method == "GET":
            return _known(recall, ConversationResponder(missing))
        if not is_items or len(item_ids) > 1:
            return None
        if item_ids and method == "DELETE":
            raise InvalidRequest(
                "an item stays in its conversation; make a new conversation of the items that you want",
                field="item_id",
            )
        if item_ids:
            return _known(recall, ItemResponder(missing, item_ids[0]))
        if method == "POST":
            return self._add(body, session_id, missing, only="items")
        return _known(recall, ItemsResponder(missing, Page.of(body.query), of_response=False))

    def _add(
        self,
        body: RequestBody,
        session_id: str | None = None,
        missing: NotFound | None = None,
        *,
        only: Literal["items", "metadata"] | None = None,
    ) -> Translation:
        """Translate a request that adds to a conversation, or that makes one: then no session is named."""
        _check_new(body, session_id)
        fields = FieldFilter(strict=self._strict)
        asked = read_conversation(body.document, fields, only=only)
        items: Items = read_items(asked.items, fields, "items")
        created_at = int(self._clock.unix())
        if session_id is None:
            note = Note("conversation", created_at, items.documents, metadata=asked.metadata or {})
        else:
            note = Note("items", created_at, items.documents, metadata=asked.metadata)
        request = Respond(
            session_id=session_id,
            after=None if session_id else 0,
            messages=items.messages,
            images=items.images,
            generates=False,
            note=encode_note(note),
        )
        made = NewItemsResponder if only == "items" else ConversationResponder
        responder = made(missing, items.image_fields)
        return Translation(request, responder, ignored=fields.ignored)


def _method(body: RequestBody) -> str:
    """Return the method of a request; TorchServe does not pass it on, but requests with a body are of no other."""
    return body.headers.method or ("GET" if body.is_empty else "POST")


def _parameters(body: RequestBody) -> dict[str, str]:
    """Return the parameters of a request; TorchServe does not pass on those of the URL, so they may be in a JSON body."""
    if body.is_empty:
        return body.query
    return {name: str(value) for name, value in body.document.items() if value is not None}


def _check_new(body: RequestBody, session_id: str | None) -> None:
    """Check that a session header, which keeps a client at its node, names no session that is to be opened."""
    if session_id is None and body.headers.session_id() is not None:
        raise InvalidRequest(
            "a new response or conversation opens a session; leave the session header out",
            field="session_id",
        )


def _known(request: Recall | Discard | Close, responder: ResponseResponder) -> Translation:
    return Translation(request, responder, Unnamed.REFUSED)


def _direct(missing: NotFound) -> Translation:
    return Translation(None, OwnResponder(), answer=missing.answer().body, status=404)


def _flag(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false").lower()
    if value not in ("true", "false"):
        raise InvalidRequest("it must be true or false", field=name)
    return value == "true"


def _number(text: str) -> int:
    if not text.removeprefix("-").isdecimal() or len(text) > 12:
        raise InvalidRequest("it must be the number of an event", field="starting_after")
    return int(text)
