"""Requests to an engine for clients of other protocols, in which messages are structured, or turns are found by number."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from ts_stateful.protocol.requests import Command, Media, Prompt, Request

__all__ = [
    "AnyRequest",
    "Chat",
    "Discard",
    "Parsing",
    "RawPrompt",
    "Recall",
    "Respond",
    "Said",
    "Tool",
    "ToolCall",
]


class ToolCall(Struct, frozen=True, omit_defaults=True):
    """A call of a function in a reply; `arguments` is JSON, as the model wrote it or the client repeats it."""

    id: str
    name: str
    arguments: str


class Said(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One message of a conversation: pieces of text, and a None in place of each image.

    A reply may have `tool_calls` and its `reasoning`; the message with a call's result, of role `tool`, its `tool_call_id`.
    """

    role: str
    parts: tuple[str | None, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str = ""


class Tool(Struct, frozen=True, omit_defaults=True):
    """A function that a reply may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}

    def __post_init__(self) -> None:
        try:
            msgspec.msgpack.encode(self.parameters)
        except (OverflowError, RecursionError):
            raise ValueError("a number in it is too large, or it is nested too deeply") from None


class Chat(Prompt, frozen=True, tag="chat", kw_only=True):
    """One turn as the whole conversation up to it, of which the session has a first part already.

    `images` are those of all messages, in their order, and so is `audio`; `clips_at` are the places of clips among both, by
    default after the images. `parses` asks for the reply's parts: content, reasoning, calls of
    `tools`. `calls` forces calls: of any tool if it is empty, else of the named one; `parallel` allows several.
    """

    prompt: str = ""
    messages: tuple[Said, ...] = ()
    clips_at: tuple[int, ...] = ()
    parses: bool = False
    tools: tuple[Tool, ...] = ()
    calls: str | None = None
    parallel: bool = True

    @property
    def media(self) -> tuple[Media, ...]:
        """See `Prompt`."""
        files = list[Media](self.images if self.clips_at else super().media)
        for place, clip in zip(self.clips_at, self.audio, strict=False):
            files.insert(place, clip)
        return tuple(files)

    @property
    def num_chars(self) -> int:
        """Return the length of all text."""
        return sum(len(part) for said in self.messages for part in said.parts if part is not None)


class RawPrompt(Prompt, frozen=True, tag="raw", kw_only=True):
    """A text that the reply continues, without a chat template; its token `ids`, if there are any, stand for `prompt`.

    With `others`, texts or ids, the choices of the request are divided among it and them, in their order. An engine gets one.
    """

    prompt: str = ""
    ids: tuple[int, ...] = ()
    others: tuple[str | tuple[int, ...], ...] = ()

    @property
    def texts(self) -> tuple[str | tuple[int, ...], ...]:
        """All of its texts."""
        return (self.ids or self.prompt, *self.others)

    def with_text(self, text: str | tuple[int, ...]) -> RawPrompt:
        """Return the same request for another text, or its ids."""
        is_text = isinstance(text, str)
        return structs.replace(self, prompt=text if is_text else "", ids=() if is_text else text)


_Turn = Annotated[int, Meta(ge=1, le=2**31)]


class Respond(Chat, frozen=True, tag="respond", kw_only=True):
    """One turn, whose `messages` and `images` are new, after turn `after` of its session; None is the last one.

    If the session has gone on since, or the request `forks` it, it stays, and the turn is made in `new_session_id`, its fork.
    `instructions` are the system prompt of this turn alone. A turn that does not `generate` adds its messages, without a
    reply. `note` is kept with the turn, for `Recall`; the engine does not read it. In the `background` the turn goes on
    without a client. A client that repeats the conversation by references `expects` these messages in it beside the replies,
    `expects_after` a turn.
    """

    after: Annotated[int, Meta(ge=0, le=2**31)] | None = 0
    new_session_id: str | None = None
    forks: bool = False
    instructions: str = ""
    generates: bool = True
    note: str = ""
    background: bool = False
    expects: tuple[Said, ...] | None = None
    expects_after: int = 0


class Recall(Command, frozen=True, tag="recall", kw_only=True):
    """A request for a turn that was made by `Respond`, as a `stream` if it is to be; `turn` None is the last one.

    `cancels` ends it first if it is in progress. `all` asks for the turns before it, too.
    """

    turn: _Turn | None
    stream: bool = False
    cancels: bool = False
    all: bool = False


class Discard(Command, frozen=True, tag="discard", kw_only=True):
    """A request to forget the note of a turn. Turns at the end without a note are removed, and so is a session without any."""

    turn: _Turn


AnyRequest = Request | Chat | RawPrompt | Respond | Recall | Discard
"""A request to an engine: one of the wire protocol, or the translation of another server's."""


class Parsing(Struct, frozen=True, omit_defaults=True):
    """The beginning of a reply that the chat template wrote, and the tools that the reply may call.

    A grammar makes a reply that `has_form` begin with a call, or have another form, whose text is not parsed.
    """

    prefix: str = ""
    tools: tuple[Tool, ...] = ()
    has_form: bool = False
