"""The fields of `POST /v1/chat/completions` and of `POST /v1/completions`, and their meaning here.

https://platform.openai.com/docs/api-reference/chat/create and
https://platform.openai.com/docs/api-reference/completions/create describe them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct

from ts_stateful.frontend.dialects.openai_fields import (
    BODY,
    STREAM_OPTIONS,
    FieldFilter,
    each_of,
)
from ts_stateful.frontend.dialects.openai_format import FormatFields, format_of
from ts_stateful.frontend.dialects.openai_messages import (
    MAX_PARTS,
    ChatMessage,
    read_messages,
    supported_message,
)
from ts_stateful.frontend.dialects.openai_tools import (
    DEFINITIONS,
    ToolChoice,
    ToolDefinitions,
    allowed_of,
    forced_of,
    supported_tools,
    tools_of,
)
from ts_stateful.frontend.dialects.sampling import MAX_TOKENS, settings_of
from ts_stateful.protocol.chat import Chat, RawPrompt
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.generation import (
    LogitBias,
    StopStrings,
    StopTokenIds,
    Tokens,
    TopLogprobs,
)
from ts_stateful.protocol.requests import Metadata
from ts_stateful.protocol.strict_json import convert

__all__ = ["Completion", "read_chat", "read_text"]

_MAX_TEXT = 16  # OpenAI's default for texts
_MAX_CHOICES = 16
_MAX_PROMPTS = 64


class _StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None


class _Generation(FormatFields, frozen=True, kw_only=True):
    """The fields that both requests have."""

    max_tokens: Tokens | None = None
    stop: StopStrings | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    metadata: Metadata = {}  # bounded as by OpenAI, without an effect
    logit_bias: LogitBias | None = None
    n: Annotated[int, Meta(ge=1, le=_MAX_CHOICES)] | None = None
    # Not OpenAI's; other servers accept them from its clients.
    stop_token_ids: StopTokenIds | None = None
    include_stop_str_in_output: bool | None = None


class _ChatBody(_Generation, frozen=True, kw_only=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_PARTS)]
    max_completion_tokens: Tokens | None = None
    tools: ToolDefinitions | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None


_TokenId = Annotated[int, Meta(ge=0, le=2**31)]
_TokenIds = Annotated[tuple[_TokenId, ...], Meta(min_length=1)]


class _TextBody(_Generation, frozen=True, kw_only=True):
    prompt: str | Annotated[list[str | _TokenId | _TokenIds], Meta(min_length=1)]
    logprobs: TopLogprobs | None = None  # the number of likeliest tokens beside each


class Completion(NamedTuple):
    """A completion that was asked for; `image_fields` has the client's path of `images[0]` of `prompt` and so on."""

    model: str
    prompt: Chat | RawPrompt
    include_usage: bool
    image_fields: Mapping[str, str] = MappingProxyType({})
    ignored: tuple[str, ...] = ()  # fields without an effect
    format_field: str = ""  # the client's name of `response_format`
    names_tool: bool = False  # a certain tool must be called
    choices: int = 1
    prompts: int = 1  # among which the choices are divided


def read_chat(document: dict[str, Any], model: str, *, strict: bool = False) -> Completion:
    """Convert a JSON object to a request of a chat with `model`; `strict` refuses fields without an effect.

    Raises:
        InvalidRequest: it is malformed or asks for something unsupported; `field` names it.
    """
    fields = FieldFilter(strict=strict)
    body: _ChatBody = convert(_supported(document, _ChatBody, fields), _ChatBody)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("it needs `logprobs: true`", field="top_logprobs")
    read = read_messages(body.messages)
    asked, tools = format_of(body), tools_of(body.tools, body.tool_choice)
    calls = forced_of(body.tool_choice, tools)
    chat = Chat(
        messages=read.said,
        images=read.images,
        audio=read.audio,
        clips_at=read.clips_at,
        max_new_tokens=body.max_completion_tokens or body.max_tokens or MAX_TOKENS,
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
        # A forced call leaves no text that could have the form.
        response_format=asked.format if calls is None else None,
        parses=True,
        tools=tools,
        calls=calls,
        parallel=body.parallel_tool_calls is not False,
        **settings_of(body),
    )
    return Completion(
        model,
        chat,
        _checked(body, fields),
        read.fields,
        fields.ignored,
        asked.field,
        names_tool=bool(calls),
        choices=body.n or 1,
    )


def read_text(document: dict[str, Any], model: str, *, strict: bool = False) -> Completion:
    """Convert a JSON object to a request of a text's continuation. See `read_chat`."""
    fields = FieldFilter(strict=strict)
    body: _TextBody = convert(_supported(document, _TextBody, fields), _TextBody)
    prompt, *others = _texts(body.prompt)
    choices = (body.n or 1) * (1 + len(others))
    if choices > _MAX_PROMPTS:
        field = "n" if len(others) < _MAX_PROMPTS else "prompt"
        raise InvalidRequest(f"at most {_MAX_PROMPTS} replies to all prompts", field=field)
    asked = format_of(body)
    raw = RawPrompt(
        others=tuple(others),
        max_new_tokens=body.max_tokens or _MAX_TEXT,
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs or 0,
        response_format=asked.format,
        **settings_of(body),
    )
    return Completion(
        model,
        raw.with_text(prompt),
        _checked(body, fields),
        ignored=fields.ignored,
        format_field=asked.field,
        choices=choices,
        prompts=1 + len(others),
    )


def _texts(prompt: str | list[str | int | tuple[int, ...]]) -> list[str | tuple[int, ...]]:
    """Return texts, or their token ids: of one text, its own list."""
    parts = [prompt] if isinstance(prompt, str) else prompt
    ids = tuple(part for part in parts if isinstance(part, int))
    texts = [part for part in parts if not isinstance(part, int)]
    if ids and texts:
        raise InvalidRequest("token ids stand in a list of their own", field="prompt")
    return texts or [ids]


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
    wanted = fields.supported(document, kind.__struct_fields__, BODY)
    if wanted.keys() >= {"max_tokens", "max_completion_tokens"}:
        fields.ignore("max_tokens", "max_tokens")
    options = wanted.get("stream_options")
    if isinstance(options, dict):
        wanted["stream_options"] = fields.supported(
            options, _StreamOptions.__struct_fields__, STREAM_OPTIONS, "stream_options."
        )
    if "tools" in wanted:
        wanted["tools"] = supported_tools(wanted["tools"], DEFINITIONS, fields, "tools")
    if "tool_choice" in wanted:
        allowed = allowed_of(wanted.get("tools"), wanted["tool_choice"])
        wanted["tools"], wanted["tool_choice"] = allowed
    if "messages" in wanted:
        read = partial(supported_message, fields)
        wanted["messages"] = each_of(wanted["messages"], "messages", read)
    return wanted
