"""Answers of the wire protocol as typed structs, which the client decodes with too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ts_stateful.protocol.chat import ToolCall

__all__ = [
    "Cancelled",
    "Closed",
    "Forked",
    "HelloAnswer",
    "Logprob",
    "Opened",
    "PackedAnswer",
    "PackedTensor",
    "Recalled",
    "ReplyDetails",
    "Rewound",
    "ServerLimits",
    "SessionInfo",
    "StepAnswer",
    "TensorAnswer",
    "TensorMetadata",
    "Timing",
    "TokenDetails",
    "TopLogprob",
    "TurnAnswer",
    "TurnPart",
    "Uploaded",
    "Usage",
    "encode",
]


class TokenDetails(Struct, frozen=True):
    """`cached_tokens`: tokens of the context whose KV was not computed but reused."""

    cached_tokens: int = 0


class ReplyDetails(Struct, frozen=True):
    """`reasoning_tokens`: tokens of a reply's reasoning, with its marks."""

    reasoning_tokens: int = 0


class Usage(Struct, frozen=True):
    """Token counts under OpenAI's names; `prompt_tokens` counts the whole context of the turn."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: TokenDetails = TokenDetails()
    completion_tokens_details: ReplyDetails | UnsetType = UNSET  # of a reply that reasons


class Timing(Struct, frozen=True):
    """Times of a turn in milliseconds; `restored_from` is None, `host`, `store` or `replay`."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    first_token_ms: float = 0.0
    total_ms: float = 0.0
    restored_from: str | None = None


class Opened(Struct, frozen=True):
    """Answer to `open`; `expires_at` is RFC 3339 in UTC, whole seconds."""

    session_id: str
    expires_at: str
    usage: Usage


class Forked(Opened, frozen=True):
    """Answer to `fork`, about the new session; `turn` is the last one of its history, or 0."""

    forked_from: str
    turn: int


class Rewound(Struct, frozen=True):
    """Answer to `rewind`; `turn` is the last remaining one, `tokens` the length of the remaining history."""

    session_id: str
    turn: int
    tokens: int


class TopLogprob(Struct, frozen=True, omit_defaults=True):
    """A token, with its natural log-probability in its place. `token` is its text, with U+FFFD for a part of a character."""

    id: int
    token: str
    bytes: Sequence[int]
    logprob: float


class Logprob(TopLogprob, frozen=True, omit_defaults=True):
    """A token of a reply, which begins at character `text_offset`, and the likeliest tokens in its place."""

    text_offset: int
    top_logprobs: Sequence[TopLogprob]


class TurnPart(Struct, frozen=True, omit_defaults=True):
    """A streamed event that is not the last one."""

    text: str
    reasoning: str = ""
    tool_calls: Sequence[ToolCall] = ()
    logprobs: Sequence[Logprob] | None = None


class TurnAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole answer to a prompt, or the last event of a stream, whose `text` is the last piece.

    The answer to `continue` also has `next` and `more`. While `more` is true, only these and `text` are set.
    """

    text: str
    session_id: str | None = None
    turn: int | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    timing: Timing | None = None
    replayed: bool = False
    next: int | None = None
    more: bool | None = None
    reasoning: str = ""
    tool_calls: Sequence[ToolCall] = ()
    logprobs: Sequence[Logprob] | None = None  # of the tokens of `text`, if they were asked for


class Recalled(TurnAnswer, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to `Recall`: the turn, without a `finish_reason` while it is in progress, and its note."""

    note: str
    earlier: Sequence[Recalled] = ()


class Uploaded(Struct, frozen=True):
    """Answer to `upload`: the number of received parts, the missing ones; `complete`: the whole file has the given hash."""

    session_id: str
    sha256: str
    received: int
    missing: Sequence[int]
    complete: bool


class Cancelled(Struct, frozen=True):
    """Answer to `cancel`, after the turn has ended; `turn` is None if none was committed."""

    session_id: str
    cancelled: bool
    turn: int | None = None


class Closed(Struct, frozen=True):
    """Answer to `close`."""

    session_id: str
    closed: bool = True


class SessionInfo(Struct, frozen=True, kw_only=True):
    """Answer to `info`. Bytes are allocated memory by tier; `residency` is `device`, `host`, `store` or `record`."""

    session_id: str
    age_s: float
    idle_s: float
    expires_at: str
    turns: int
    tokens: int
    cached_tokens: int  # with KV in memory
    images: int
    residency: str
    device_bytes: int
    host_bytes: int
    running: bool  # a turn is in progress
    waiting: int  # prompts in the session's queue
    audio: int = 0  # clips
    saved: bool | None = None  # all committed turns are in the store; None: no store
    adapter: str | None = None


class TensorAnswer(Struct, frozen=True):
    """One output of a step. `data` has the elements in C order; NaN and infinities become null, as JSON has none."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: list[Any]

    def tolist(self) -> Any:
        """Return the elements nested by the shape, or the only element if there is no dimension."""
        nested = self.data
        for size in reversed(self.shape[1:]):
            nested = [nested[at : at + size] for at in range(0, len(nested), size)]
        return nested if self.shape else nested[0]


class StepAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to `step`; `turn` counts the steps of the sequence; `closed`: this was the last one."""

    model_name: str
    session_id: str
    turn: int
    outputs: list[TensorAnswer]
    id: str | None = None
    closed: bool = False
    replayed: bool = False


class PackedTensor(Struct, frozen=True):
    """One output of a step. `data` has the elements in C order, little-endian."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


class PackedAnswer(Struct, frozen=True):
    """Answer to `step` with exact elements, in MessagePack. JSON has neither NaN nor infinities."""

    content_type: ClassVar[str] = "application/msgpack"

    model_name: str
    outputs: tuple[PackedTensor, ...]


class TensorMetadata(Struct, frozen=True):
    """A tensor under the names of the Open Inference Protocol; `shape` is that of one row, -1 where it is free."""

    name: str
    datatype: str
    shape: Sequence[int]


class ServerLimits(Struct, frozen=True, kw_only=True):
    """Limits of the server, in the units of the names."""

    max_sessions: int
    idle_s: float
    lifetime_s: float
    queued_prompts: int
    context_tokens: int
    images: int
    image_bytes: int
    image_pixels: int
    audio: int = 0  # clips of a request; they have as many bytes as images
    audio_s: float = 0.0


class HelloAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to `hello`: the server with its model, profile and limits.

    `chat_template` is of language models: False if messages are joined without marks of who speaks. `adapters` are those that
    a session can have. `quantization` is the method of a quantised checkpoint. `tensor_parallel` counts the devices over which
    an engine splits the model.
    """

    server: str
    version: str
    profile: str
    model: str
    limits: ServerLimits
    chat_template: bool | UnsetType = UNSET
    adapters: Sequence[str] = ()
    quantization: str | None = None
    tensor_parallel: int = 1


encode = msgspec.json.Encoder().encode
