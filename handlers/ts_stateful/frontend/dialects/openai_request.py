"""The fields of `POST /v1/chat/completions` and of `POST /v1/completions`, and their meaning here.

https://platform.openai.com/docs/api-reference/chat/create and
https://platform.openai.com/docs/api-reference/completions/create describe them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from ts_stateful.frontend.dialects.openai_fields import (
    BODY,
    IMAGE_URL,
    MESSAGE,
    PART,
    STREAM_OPTIONS,
    FieldFilter,
)
from ts_stateful.frontend.dialects.openai_format import FormatFields, format_of
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.generation import (
    LogitBias,
    MinP,
    Penalty,
    RepetitionPenalty,
    StopStrings,
    StopTokenIds,
    TopLogprobs,
    TopP,
)
from ts_stateful.protocol.requests import Chat, Image, Metadata, RawPrompt, Said
from ts_stateful.protocol.strict_json import convert

__all__ = ["Completion", "read_chat", "read_text"]

# A reply without a limit would reserve the rest of the context window, on the device too.
_MAX_TOKENS = 1024
_MAX_TEXT = 16  # OpenAI's default for texts
_SEEDS = 2**63
# Every message and part costs an engine time, even an empty one.
_MAX_PARTS = 4096

_Tokens = Annotated[int, Meta(ge=1, le=1_000_000)]


class _Url(Struct, frozen=True, forbid_unknown_fields=True):
    url: str


class _Text(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


class _Picture(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="image_url"):
    image_url: _Url


_KINDS: dict[str, type[Struct]] = {"text": _Text, "image_url": _Picture}


class _Message(Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[_Text | _Picture], Meta(min_length=1, max_length=_MAX_PARTS)]


class _StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None


class _Generation(FormatFields, frozen=True, kw_only=True):
    """The fields that both requests have."""

    max_tokens: _Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: TopP | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopStrings | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    metadata: Metadata = {}  # bounded as by OpenAI, without an effect
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    # Not OpenAI's; other servers accept them from its clients.
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    stop_token_ids: StopTokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of a prompt."""
        given = {name: getattr(self, name) for name in _SAME}
        given["top_k"] = max(0, self.top_k or 0)
        given["seed"] = None if self.seed is None else self.seed % _SEEDS
        return {name: value for name, value in given.items() if value is not None}


# The fields of the same name and meaning as in a prompt of ours, which bounds them.
_SAME = (
    "stream",
    "temperature",
    "top_p",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "min_p",
    "repetition_penalty",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
)


class _ChatBody(_Generation, frozen=True, kw_only=True):
    messages: Annotated[list[_Message], Meta(min_length=1, max_length=_MAX_PARTS)]
    max_completion_tokens: _Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None


class _TextBody(_Generation, frozen=True, kw_only=True):
    prompt: str | Annotated[list[str], Meta(min_length=1, max_length=1)]
    logprobs: TopLogprobs | None = None  # the number of likeliest tokens beside each


class Completion(NamedTuple):
    """A completion that was asked for; `image_fields` are the client's paths of the images of `prompt`, in their order."""

    model: str
    prompt: Chat | RawPrompt
    include_usage: bool
    image_fields: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()  # fields without an effect
    format_field: str = ""  # the client's name of `response_format`


def read_chat(document: dict[str, Any], model: str, *, strict: bool = False) -> Completion:
    """Convert a JSON object to a request of a chat with `model`; `strict` refuses fields without an effect.

    Raises:
        InvalidRequest: it is malformed or asks for something unsupported; `field` names it.
    """
    fields = FieldFilter(strict=strict)
    body: _ChatBody = convert(_supported(document, _ChatBody, fields), _ChatBody)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("it needs `logprobs: true`", field="top_logprobs")
    messages, images, image_fields = _messages(body.messages)
    asked = format_of(body)
    chat = Chat(
        messages=messages,
        images=images,
        max_new_tokens=body.max_completion_tokens or body.max_tokens or _MAX_TOKENS,
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
        response_format=asked.format,
        **body.settings,
    )
    usage = _checked(body, fields)
    return Completion(model, chat, usage, image_fields, fields.ignored, asked.field)


def read_text(document: dict[str, Any], model: str, *, strict: bool = False) -> Completion:
    """Convert a JSON object to a request of a text's continuation. See `read_chat`."""
    fields = FieldFilter(strict=strict)
    body: _TextBody = convert(_supported(document, _TextBody, fields), _TextBody)
    (prompt,) = (body.prompt,) if isinstance(body.prompt, str) else body.prompt
    asked = format_of(body)
    raw = RawPrompt(
        prompt=prompt,
        max_new_tokens=body.max_tokens or _MAX_TEXT,
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs or 0,
        response_format=asked.format,
        **body.settings,
    )
    usage = _checked(body, fields)
    return Completion(model, raw, usage, ignored=fields.ignored, format_field=asked.field)


def _checked(body: _Generation, fields: FieldFilter) -> bool:
    """Check what no type can; return True if a stream ends with the usage."""
    if body.metadata:
        fields.ignore("metadata", "metadata")
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InvalidRequest("only allowed when `stream` is true", field="stream_options")
    return bool(body.stream_options.include_usage)


def _supported(
    document: dict[str, Any], kind: type[_Generation], fields: FieldFilter
) -> dict[str, Any]:
    """Return the document without fields that have no meaning here. What has a wrong type stays, for `convert` to refuse."""
    wanted = fields.supported(document, kind, BODY)
    options = wanted.get("stream_options")
    if isinstance(options, dict):
        wanted["stream_options"] = fields.supported(
            options, _StreamOptions, STREAM_OPTIONS, "stream_options."
        )
    if isinstance(wanted.get("messages"), list):
        wanted["messages"] = [
            _message(message, fields, f"messages[{index}].")
            if isinstance(message, dict)
            else message
            for index, message in enumerate(wanted["messages"])
        ]
    return wanted


def _message(message: dict[str, Any], fields: FieldFilter, place: str) -> dict[str, Any]:
    wanted = fields.supported(message, _Message, MESSAGE, place)
    if wanted.get("role") == "assistant":
        wanted.setdefault("content", "")  # null for a reply without text
    if isinstance(wanted.get("content"), list):
        wanted["content"] = [
            _part(part, fields, f"{place}content[{index}].") if isinstance(part, dict) else part
            for index, part in enumerate(wanted["content"])
        ]
    return wanted


def _part(part: dict[str, Any], fields: FieldFilter, place: str) -> dict[str, Any]:
    name = part.get("type")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        return part
    rest = {key: value for key, value in part.items() if key != "type"}
    wanted = {"type": name, **fields.supported(rest, kind, PART, place)}
    url = wanted.get("image_url")
    if isinstance(url, dict):
        wanted["image_url"] = fields.supported(url, _Url, IMAGE_URL, f"{place}image_url.")
    return wanted


def _messages(
    asked: list[_Message],
) -> tuple[tuple[Said, ...], tuple[Image, ...], tuple[str, ...]]:
    messages: list[Said] = []
    images: list[Image] = []
    fields: list[str] = []
    for index, message in enumerate(asked):
        role = "system" if message.role == "developer" else message.role
        if isinstance(message.content, str):
            messages.append(Said(role, (message.content,)))
            continue
        parts: list[str | None] = []
        for number, part in enumerate(message.content):
            field = f"messages[{index}].content[{number}].image_url"
            if isinstance(part, _Text):
                parts.append(part.text)
            elif role != "user":
                raise InvalidRequest("only a user's message may have images", field=field)
            else:
                parts.append(None)
                images.append(Image(url=part.image_url.url))
                fields.append(f"{field}.url")
        messages.append(Said(role, tuple(parts)))
    if sum(len(said.parts) for said in messages) > _MAX_PARTS:
        raise InvalidRequest(f"more than {_MAX_PARTS} parts", field="messages")
    return tuple(messages), tuple(images), tuple(fields)
