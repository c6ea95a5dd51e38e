"""The fields of `POST /v1/chat/completions`, and their meaning here.

https://platform.openai.com/docs/api-reference/chat/create describes them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Chat, Image, Metadata, Said
from ts_stateful.protocol.strict_json import convert

__all__ = ["Completion", "read_completion"]

# A reply without a limit would reserve the rest of the context window, on the device too.
_MAX_TOKENS = 1024
_SEEDS = 2**63
# Every message and part costs an engine time, even an empty one.
_MAX_PARTS = 4096

_Tokens = Annotated[int, Meta(ge=1, le=1_000_000)]
_StopString = Annotated[str, Meta(min_length=1, max_length=256)]

# Fields without effect, whatever their value.
_IDLE = frozenset(
    {
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
# Fields accepted only with a value that asks for nothing, or with null.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}
_NEUTRAL_IN_MESSAGES: dict[str, tuple[object, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
    "tool_calls": ([],),
}


class _Url(Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class _Text(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


class _Picture(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="image_url"):
    image_url: _Url


class _Message(Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[_Text | _Picture], Meta(min_length=1, max_length=_MAX_PARTS)]
    name: str | None = None


class _StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _Body(Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    messages: Annotated[list[_Message], Meta(min_length=1, max_length=_MAX_PARTS)]
    max_completion_tokens: _Tokens | None = None
    max_tokens: _Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: _StopString | Annotated[list[_StopString], Meta(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    metadata: Metadata = {}  # checked only; it has no effect
    # Not OpenAI's; other servers accept them from its clients.
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    ignore_eos: bool | None = None


class Completion(NamedTuple):
    """A completion that was asked for; `image_fields` are the client's paths of the images of `chat`, in their order."""

    model: str
    chat: Chat
    include_usage: bool
    image_fields: tuple[str, ...]


def read_completion(document: dict[str, Any]) -> Completion:
    """Convert a JSON object to the request.

    Raises:
        InvalidRequest: it is malformed or asks for something unsupported; `field` names it.
    """
    wanted = _without_neutral(document, _NEUTRAL, "", idle=_IDLE)
    if isinstance(document.get("messages"), list):
        wanted["messages"] = [
            _without_neutral(message, _NEUTRAL_IN_MESSAGES, f"messages[{index}].")
            if isinstance(message, dict)
            else message
            for index, message in enumerate(document["messages"])
        ]
    body: _Body = convert(wanted, _Body)
    messages, images, fields = _messages(body.messages)
    options = body.stream_options or _StreamOptions()
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("only allowed when `stream` is true", field="stream_options")
    stop = body.stop or ()
    chat = Chat(
        messages=messages,
        images=images,
        stream=bool(body.stream),
        max_new_tokens=body.max_completion_tokens or body.max_tokens or _MAX_TOKENS,
        temperature=body.temperature or 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        seed=None if body.seed is None else body.seed % _SEEDS,
        stop=stop if isinstance(stop, str) else tuple(stop),
        ignore_eos=bool(body.ignore_eos),
    )
    return Completion(body.model, chat, bool(options.include_usage), fields)


def _without_neutral(
    document: dict[str, Any],
    neutral: dict[str, tuple[object, ...]],
    path: str,
    idle: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Return the fields with an effect. Raise InvalidRequest for an unsupported one."""
    wanted = {}
    for name, value in document.items():
        if value is None or name in idle:
            continue
        if name not in neutral:
            wanted[name] = value
        elif value not in neutral[name]:
            raise InvalidRequest("this server does not support it", field=f"{path}{name}")
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
