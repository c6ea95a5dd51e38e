"""The fields of `POST /v1/responses` (https://www.openresponses.org/reference), and their meaning here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from ts_stateful.clock import Clock
from ts_stateful.frontend.dialects.openai_fields import FieldFilter, FieldTable
from ts_stateful.frontend.dialects.responses.ids import ResponseId, session_of_conversation
from ts_stateful.frontend.dialects.responses.items import Reference, find_reference, read_items
from ts_stateful.frontend.dialects.responses.note import Note, encode_note
from ts_stateful.frontend.dialects.responses.tools import read_form, read_tools
from ts_stateful.frontend.dialects.sampling import MAX_TOKENS, SamplingFields, settings_of
from ts_stateful.protocol.chat import Respond
from ts_stateful.protocol.errors import InvalidRequest, SessionNotFound
from ts_stateful.protocol.generation import Tokens, TopLogprobs
from ts_stateful.protocol.requests import Metadata
from ts_stateful.protocol.response_format import ResponseFormat
from ts_stateful.protocol.strict_json import convert

__all__ = ["AskedResponse", "read_conversation", "read_create"]

_LOGPROBS = "message.output_text.logprobs"

_Objects = Annotated[list[dict[str, Any]], Meta(max_length=4096)]


class _Conversation(Struct, frozen=True):
    id: str


class _Body(SamplingFields, frozen=True, kw_only=True):
    input: str | _Objects = []
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | _Conversation | None = None
    store: bool = True
    background: bool = False
    stream: bool = False
    generate: bool = True  # of the WebSocket mode
    include: Annotated[list[str], Meta(max_length=16)] = []
    max_output_tokens: Tokens | None = None
    metadata: Metadata = {}
    parallel_tool_calls: bool = True
    text: dict[str, Any] = {}
    tools: Annotated[list[dict[str, Any]], Meta(max_length=128)] = []
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    top_logprobs: TopLogprobs = 0
    truncation: Literal["auto", "disabled"] = "disabled"


_TABLE = FieldTable(
    {"prompt": ()},
    {
        "service_tier": ("auto", "default"),
        "stream_options": ({}, {"include_obfuscation": False}),
        "reasoning": ({}, {"effort": "none"}),
    },
)
_REASONING = FieldTable({"effort": ("none",)})
_TEXT = FieldTable({"verbosity": ("medium",)})


class ConversationBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of `POST /v1/conversations`, and of its items."""

    items: _Objects = []
    metadata: Metadata | None = None


class AskedResponse(NamedTuple):
    """A response that was asked for; `image_fields` has the client's path of `images[0]` of `request` and so on."""

    request: Respond
    note: Note
    image_fields: Mapping[str, str]
    ignored: tuple[str, ...]
    stores: bool


def read_create(
    document: dict[str, Any], model: str, clock: Clock, *, strict: bool
) -> AskedResponse:
    """Convert a JSON object to a request for a response of `model`; `strict` refuses fields without an effect.

    Raises:
        InvalidRequest: it is malformed or asks for something unsupported; `field` names it.
        SessionNotFound: it names a response or a conversation that cannot be.
    """
    fields = FieldFilter(strict=strict)
    body: _Body = convert(_supported(document, fields), _Body)
    referred = find_reference(body.input, fields)
    items = read_items(body.input, fields, first=0 if referred is None else referred.num_items)
    tools, calls = read_tools(body.tools, body.tool_choice, fields)
    form = read_form(body.text.get("format"))
    continued = _continued(body, referred)
    _check(body, fields, is_new=continued.session_id is None)
    kind: Any = "response" if body.generate else "items"
    note = Note(kind, int(clock.unix()), items.documents, _fields(body, model, form))
    request = Respond(
        messages=items.messages,
        images=items.images,
        instructions=body.instructions or "",
        generates=body.generate,
        background=body.background,
        max_new_tokens=body.max_output_tokens or MAX_TOKENS,
        response_format=form if calls is None else None,  # a forced call leaves no text
        tools=tools,
        calls=calls,
        parallel=body.parallel_tool_calls,
        parses=True,
        note=encode_note(note),
        expects=None if referred is None else referred.before,
        logprobs=bool(body.top_logprobs) or _LOGPROBS in body.include,
        top_logprobs=body.top_logprobs,
        **continued._asdict(),
        **settings_of(body),
    )
    return AskedResponse(request, note, items.image_fields, fields.ignored, body.store)


def read_conversation(
    document: dict[str, Any], fields: FieldFilter, *, only: str | None
) -> ConversationBody:
    """Convert a JSON object to the fields of a conversation, or to the `only` one that is changed.

    Raises:
        InvalidRequest: it is malformed, has another field, or lacks items that are to be added.
    """
    wanted = fields.supported(document, ConversationBody.__struct_fields__, FieldTable())
    body: ConversationBody = convert(wanted, ConversationBody)
    for name in wanted:
        if only not in (None, name):
            raise InvalidRequest(f"this path takes `{only}` alone; leave it out", field=name)
    if only == "items" and not body.items:
        raise InvalidRequest("it is missing or empty", field="items")
    return body


def _supported(document: dict[str, Any], fields: FieldFilter) -> dict[str, Any]:
    """Return the document without fields that have no meaning here."""
    wanted = fields.supported(document, _Body.__struct_fields__, _TABLE)
    reasoning = document.get("reasoning")
    if isinstance(reasoning, dict):
        fields.supported(reasoning, (), _REASONING, "reasoning.")
    if isinstance(wanted.get("text"), dict):
        wanted["text"] = fields.supported(wanted["text"], ("format",), _TEXT, "text.")
    return wanted


def _check(body: _Body, fields: FieldFilter, *, is_new: bool) -> None:
    if not body.input and isinstance(body.input, list) and body.generate and is_new:
        raise InvalidRequest(
            "it is missing or empty; send a text, or a list of items", field="input"
        )
    if body.background and not body.store:
        raise InvalidRequest("a response in the background is stored", field="background")
    if body.truncation == "auto":
        fields.ignore("truncation", "truncation")
    for name in body.include:
        if name != _LOGPROBS:
            fields.ignore(f"include[{name}]", "include")


class _Continued(NamedTuple):
    """The session that a response continues, None for a new one, the turn before it, and that before what it `expects`."""

    session_id: str | None
    after: int | None
    expects_after: int = 0


def _continued(body: _Body, referred: Reference | None) -> _Continued:
    if body.conversation is None:
        before = ResponseId.parse(body.previous_response_id or "")
        if body.previous_response_id is not None and before is None:
            raise SessionNotFound("no such response", field="previous_response_id")
        found = before if referred is None else referred.response
        if before and found and found != before and found.turn <= before.turn:
            raise InvalidRequest(
                "the last `item_reference` is to an earlier response; leave it out", field="input"
            )
        session_id, after = found or (None, 0)
        return _Continued(session_id, after, 0 if before is None else before.turn)
    if referred is not None:
        raise InvalidRequest(
            "an `item_reference` excludes `conversation`; send one of them", field="input"
        )
    if body.previous_response_id is not None:
        raise InvalidRequest(
            "it excludes `previous_response_id`; send one of them", field="conversation"
        )
    name = body.conversation if isinstance(body.conversation, str) else body.conversation.id
    if (conversation := session_of_conversation(name)) is None:
        raise SessionNotFound("no such conversation", field="conversation")
    return _Continued(conversation, None)


def _fields(body: _Body, model: str, form: ResponseFormat | None) -> dict[str, Any]:
    """Return the fields of the response's object that repeat the request."""
    conversation = body.conversation
    name = conversation.id if isinstance(conversation, _Conversation) else conversation
    shown = body.text.get("format") or {"type": "text"}
    if form is not None and shown["type"] == "json_schema":
        # The published document of version 2026-04-24 allows no schema here.
        shown = {"name": "schema", "description": None, "strict": True, **shown, "schema": None}
    return {
        "model": model,
        "background": body.background,
        "conversation": None if name is None else {"id": name},
        "frequency_penalty": body.frequency_penalty or 0.0,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata,
        "parallel_tool_calls": body.parallel_tool_calls,
        "presence_penalty": body.presence_penalty or 0.0,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": None,
        "reasoning": None,
        "safety_identifier": None,
        "service_tier": "default",
        "store": body.store,
        "temperature": body.temperature or 0.0,
        "text": {"format": shown},
        "tool_choice": body.tool_choice or "auto",
        "tools": [
            {"description": None, "parameters": None, "strict": None, **tool} for tool in body.tools
        ],
        "top_logprobs": body.top_logprobs,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
    }
