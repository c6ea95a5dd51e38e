"""Input items: the messages of a turn as a client sends them, and as they are listed later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import structs

from ts_stateful.frontend.dialects.openai_fields import FieldFilter, FieldTable
from ts_stateful.frontend.dialects.openai_messages import MAX_PARTS
from ts_stateful.frontend.dialects.responses.ids import ResponseId
from ts_stateful.protocol.chat import Said, ToolCall
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Image

__all__ = ["Items", "Reference", "find_reference", "read_items"]

_KIND = "item_reference"
_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_INLINE = "data:"
_ITEM = FieldTable(repeated=("type", "id", "status"))
_PARTS = ("text", "refusal", "image_url", "file_id")
_PART = FieldTable(idle={"detail": ("auto",)}, repeated=("type", "annotations", "logprobs"))


class Items(NamedTuple):
    """The messages of input items, the images in them, and the items as they are listed, without ids.

    `image_fields` has the client's path of `images[0]` and so on.
    """

    messages: tuple[Said, ...]
    images: tuple[Image, ...]
    image_fields: Mapping[str, str]
    documents: tuple[dict[str, Any], ...]


class _Reader:
    """Reads items one by one. Items that a model makes as one reply become one message."""

    def __init__(self, fields: FieldFilter) -> None:
        self._fields = fields
        self.messages: list[Said] = []
        self.images: list[Image] = []
        self.image_fields: dict[str, str] = {}
        self.documents: list[dict[str, Any]] = []
        self._reply: Said | None = None

    def read(self, item: dict[str, Any], field: str) -> None:
        kind = item.get("type") or "message"
        readers = {
            "message": (self._message, ("role", "content")),
            "function_call": (self._call, ("call_id", "name", "arguments")),
            "function_call_output": (self._result, ("call_id", "output")),
            "reasoning": (self._reasoning, ("summary", "content")),
        }
        if kind == "item_reference":
            raise InvalidRequest(
                "the server has no item of this id; send the item itself", field=field
            )
        if not isinstance(kind, str) or kind not in readers:
            raise InvalidRequest(
                f"items of type {str(kind)[:64]!r} are not supported, only {', '.join(readers)}",
                field=f"{field}.type",
            )
        read, names = readers[kind]
        self._fields.supported(item, names, _ITEM, f"{field}.")
        read(item, field)

    def end_reply(self) -> None:
        if self._reply is not None:
            self.messages.append(self._reply)
            self._reply = None

    def _message(self, item: dict[str, Any], field: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise InvalidRequest(f"it must be one of {', '.join(_ROLES)}", field=f"{field}.role")
        parts, shown = self._content(item.get("content"), role, f"{field}.content")
        document = {"type": "message", "status": "completed", "role": role, "content": shown}
        self.documents.append(document)
        if role == "assistant":
            if self._reply is not None and (any(self._reply.parts) or self._reply.tool_calls):
                self.end_reply()
            self._reply = structs.replace(self._open_reply(), parts=parts)
            return
        self.end_reply()
        self.messages.append(Said("system" if role == "developer" else role, parts))

    def _content(
        self, content: object, role: str, field: str
    ) -> tuple[tuple[str | None, ...], list[dict[str, Any]]]:
        if isinstance(content, str):
            content = [
                {"type": "output_text" if role == "assistant" else "input_text", "text": content}
            ]
        if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
            raise InvalidRequest("expected a text or a list of objects", field=field)
        pairs = [self._part(part, role, f"{field}[{at}]") for at, part in enumerate(content)]
        return tuple(text for text, _ in pairs), [shown for _, shown in pairs]

    def _part(
        self, part: dict[str, Any], role: str, field: str
    ) -> tuple[str | None, dict[str, Any]]:
        kind = part.get("type")
        self._fields.supported(part, _PARTS, _PART, f"{field}.")
        if kind in _TEXTS:
            text = _text(part, "text", field)
            more: dict[str, Any] = (
                {"annotations": [], "logprobs": []} if kind == "output_text" else {}
            )
            return text, {"type": kind, "text": text, **more}
        if kind == "refusal":
            text = _text(part, "refusal", field)
            return text, {"type": kind, "refusal": text}
        if kind != "input_image":
            raise InvalidRequest(
                f"parts of type {str(kind)[:64]!r} are not supported, only input_text, input_image, output_text and refusal",
                field=f"{field}.type",
            )
        if role != "user":
            raise InvalidRequest("only a user's message may have images", field=field)
        if part.get("file_id") is not None:
            raise InvalidRequest(
                "send `image_url`; this server has no files", field=f"{field}.file_id"
            )
        if part.get("image_url") is None:
            raise InvalidRequest(
                "send it; an inline image is listed without, but `previous_response_id` keeps what it shows",
                field=f"{field}.image_url",
            )
        url = _text(part, "image_url", field)
        self.image_fields[f"images[{len(self.images)}]"] = f"{field}.image_url"
        self.images.append(Image(url=url))
        detail = part.get("detail") if part.get("detail") in ("low", "high") else "auto"
        # The engine keeps what the image shows; its file would make every listing as long.
        listed = None if url.startswith(_INLINE) else url
        return None, {"type": kind, "image_url": listed, "detail": detail}

    def _call(self, item: dict[str, Any], field: str) -> None:
        fields = {name: _text(item, name, field) for name in ("call_id", "name", "arguments")}
        reply = self._open_reply()
        call = ToolCall(fields["call_id"], fields["name"], fields["arguments"])
        self._reply = structs.replace(reply, tool_calls=(*reply.tool_calls, call))
        self.documents.append({"type": "function_call", "status": "completed", **fields})

    def _result(self, item: dict[str, Any], field: str) -> None:
        self.end_reply()
        call_id, output = _text(item, "call_id", field), item.get("output")
        parts: tuple[str | None, ...] = (output,) if isinstance(output, str) else ()
        if not parts:
            parts, output = self._content(output, "tool", f"{field}.output")
        self.messages.append(Said("tool", parts, tool_call_id=call_id))
        self.documents.append(
            {
                "type": "function_call_output",
                "status": "completed",
                "call_id": call_id,
                "output": output,
            }
        )

    def _reasoning(self, item: dict[str, Any], field: str) -> None:
        parts, shown = self._content(item.get("content") or [], "assistant", f"{field}.content")
        if self._reply is not None and any(self._reply.parts):  # it is of the next one
            self.end_reply()
        reply = self._open_reply()
        thought = "".join(part for part in parts if part is not None)
        self._reply = structs.replace(reply, reasoning=reply.reasoning + thought)
        summary = item.get("summary")
        document = {"type": "reasoning", "summary": summary if isinstance(summary, list) else []}
        self.documents.append({**document, "content": shown} if shown else document)

    def _open_reply(self) -> Said:
        return self._reply or Said("assistant", ("",))


def read_items(
    given: str | Sequence[dict[str, Any]],
    fields: FieldFilter,
    field: str = "input",
    *,
    first: int = 0,
) -> Items:
    """Read the input of a response, or the items of a conversation, from the one at `first` on.

    Raises:
        InvalidRequest: an item is malformed, or of a type that is not supported; `field` names it.
    """
    reader = _Reader(fields)
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for index, item in list(enumerate(items))[first:]:
        reader.read(item, field if isinstance(given, str) else f"{field}[{index}]")
    reader.end_reply()
    if sum(len(said.parts) for said in reader.messages) > MAX_PARTS:
        raise InvalidRequest(f"more than {MAX_PARTS} parts", field=field)
    return Items(
        tuple(reader.messages),
        tuple(reader.images),
        reader.image_fields,
        tuple(reader.documents),
    )


def _text(item: dict[str, Any], name: str, field: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidRequest("expected a text", field=f"{field}.{name}")
    return value


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
