"""The messages of a chat, as OpenAI's clients send them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from ts_stateful.frontend.dialects.openai_fields import (
    IMAGE_URL,
    MESSAGE,
    PART,
    FieldFilter,
    each_of,
)
from ts_stateful.frontend.dialects.openai_tools import CALLS, CallFields, calls_of, supported_tools
from ts_stateful.protocol.chat import Said
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Audio, Image

__all__ = ["MAX_PARTS", "ChatMessage", "Messages", "read_messages", "supported_message"]

# Every message and part costs an engine time, even an empty one.
MAX_PARTS = 4096


class _Url(Struct, frozen=True, forbid_unknown_fields=True):
    url: str


class _Text(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


class _Picture(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="image_url"):
    image_url: _Url


class _Recording(Struct, frozen=True, forbid_unknown_fields=True):
    data: str
    format: Literal["wav", "flac"]


class _Clip(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="input_audio"):
    input_audio: _Recording


_KINDS: dict[str, type[Struct]] = {"text": _Text, "image_url": _Picture, "input_audio": _Clip}


class Messages(NamedTuple):
    """The said messages, and the media in them; see `Chat`. `fields` has the client's path of `images[0]` and so on."""

    said: tuple[Said, ...]
    images: tuple[Image, ...]
    audio: tuple[Audio, ...]
    clips_at: tuple[int, ...]
    fields: dict[str, str]


class ChatMessage(CallFields, frozen=True, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        str | Annotated[list[_Text | _Picture | _Clip], Meta(min_length=1, max_length=MAX_PARTS)]
    )
    reasoning_content: str = ""


def supported_message(fields: FieldFilter, message: dict[str, Any], place: str) -> dict[str, Any]:
    if message.get("role") == "assistant" and message.get("content") in (None, ""):
        message = {**message, "content": message.get("refusal") or "", "refusal": None}
    wanted = fields.supported(message, ChatMessage.__struct_fields__, MESSAGE, place)
    if "content" in wanted:
        wanted["content"] = each_of(wanted["content"], f"{place}content", partial(_part, fields))
    if "tool_calls" in wanted:
        calls = supported_tools(wanted["tool_calls"], CALLS, fields, f"{place}tool_calls")
        wanted["tool_calls"] = calls
    return wanted


def _part(fields: FieldFilter, part: dict[str, Any], place: str) -> dict[str, Any]:
    if part.get("type") == "refusal":  # it is what the reply says
        part = {"type": "text", "text": part.get("refusal")}
    name = part.get("type")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        return part
    wanted = {"type": name, **fields.supported(part, kind.__struct_fields__, PART, place)}
    url = wanted.get("image_url")
    if isinstance(url, dict):
        wanted["image_url"] = fields.supported(url, ("url",), IMAGE_URL, f"{place}image_url.")
    return wanted


def read_messages(asked: list[ChatMessage]) -> Messages:
    messages: list[Said] = []
    images: list[Image] = []
    audio: list[Audio] = []
    clips_at: list[int] = []
    fields: dict[str, str] = {}
    called: set[str] = set()
    for index, message in enumerate(asked):
        called.update(call.id for call in message.tool_calls or ())
        role = "system" if message.role == "developer" else message.role
        said = partial(_said, message, role, f"messages[{index}]", called)
        if isinstance(message.content, str):
            messages.append(said((message.content,)))
            continue
        parts: list[str | None] = []
        for number, part in enumerate(message.content):
            field = f"messages[{index}].content[{number}]"
            if isinstance(part, _Text):
                parts.append(part.text)
                continue
            parts.append(None)
            if role != "user":
                kind = "image_url" if isinstance(part, _Picture) else "input_audio"
                raise InvalidRequest(
                    "only a user's message may have images or audio", field=f"{field}.{kind}"
                )
            if isinstance(part, _Picture):
                fields[f"images[{len(images)}]"] = f"{field}.image_url.url"
                images.append(Image(url=part.image_url.url))
            else:
                clip = part.input_audio
                fields[f"audio[{len(audio)}]"] = f"{field}.input_audio.data"
                clips_at.append(len(images) + len(audio))
                audio.append(Audio(url=f"data:audio/{clip.format};base64,{clip.data}"))
        messages.append(said(tuple(parts)))
    if sum(len(said.parts) for said in messages) > MAX_PARTS:
        raise InvalidRequest(f"more than {MAX_PARTS} parts", field="messages")
    places = tuple(clips_at) if images else ()
    return Messages(tuple(messages), tuple(images), tuple(audio), places, fields)


def _said(
    message: ChatMessage, role: str, field: str, called: set[str], parts: tuple[str | None, ...]
) -> Said:
    if message.tool_calls and role != "assistant":
        raise InvalidRequest("only an assistant calls tools", field=f"{field}.tool_calls")
    place = f"{field}.tool_call_id"
    if (role == "tool") != (message.tool_call_id is not None):
        raise InvalidRequest("a message of role `tool` has it, and no other", field=place)
    if role == "tool" and message.tool_call_id not in called:
        problem = "no message before it has a call of this id; send the call too, or leave out both"
        raise InvalidRequest(problem, field=place)
    return Said(role, parts, calls_of(message), message.tool_call_id, message.reasoning_content)
