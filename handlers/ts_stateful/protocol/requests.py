"""The wire protocol, inbound: requests as typed structs.

Owns what a JSON document may say. Knows nothing of transports, sessions or models. Parsing is pure and takes microseconds: no
fetch, no decode of images.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from msgspec import Meta, Struct

from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.strict_json import convert

__all__ = [
    "AnyRequest",
    "Cancel",
    "Chat",
    "Close",
    "Command",
    "Continue",
    "Fork",
    "Hello",
    "Image",
    "Info",
    "InputTensor",
    "Open",
    "OutputName",
    "Prompt",
    "Request",
    "Rewind",
    "Said",
    "SequenceParameters",
    "Step",
    "Upload",
    "parse_request",
]

_Count = Annotated[int, Meta(ge=0, le=2**31)]
_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # more could not be told to an engine
_Metadata = Annotated[dict[str, str | _Int64 | float | bool | None], Meta(max_length=32)]
_Seconds = Annotated[float, Meta(gt=0)]
_Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_StopString = Annotated[str, Meta(min_length=1, max_length=256)]


class Image(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One image of a request: exactly one of a URL, base64 text, or the SHA-256 of a file uploaded into the session."""

    url: str | None = None
    base64: str | None = None
    upload: _Sha256 | None = None

    def __post_init__(self) -> None:
        if (self.url, self.base64, self.upload).count(None) != 2:
            raise ValueError("an image takes exactly one of `url`, `base64` and `upload`")


class Command(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="type",
    kw_only=True,
):
    """A request about a session; `session_id` is None while there is none yet."""

    session_id: str | None = None


class Open(Command, frozen=True, tag="open", kw_only=True):
    """Opens a session with a system prompt and images."""

    system: str | None = None
    images: tuple[Image, ...] = ()
    ttl_s: _Seconds | None = None
    metadata: _Metadata = {}


class Prompt(Command, frozen=True, tag="prompt", kw_only=True):
    """One turn: the user's text and images, and how to generate the reply."""

    prompt: str
    images: tuple[Image, ...] = ()
    stream: bool = False
    max_new_tokens: Annotated[int, Meta(ge=1, le=1_000_000)] = 256
    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: _Count = 0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    stop: _StopString | Annotated[tuple[_StopString, ...], Meta(max_length=16)] = ()
    ignore_eos: bool = False
    turn: Annotated[int, Meta(ge=1, le=2**31)] | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whichever form the client used."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop

    @property
    def num_chars(self) -> int:
        """The length of its text."""
        return len(self.prompt)


class Said(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One message of a conversation: pieces of text, and a None where one of its images stands."""

    role: str
    parts: tuple[str | None, ...]


class Chat(Prompt, frozen=True, tag="chat", kw_only=True):
    """One turn, told as the whole conversation up to it: what the session has said already stays, the rest is its next turn.

    `images` are those of all messages, in their order. Made by the frontend for clients that keep the conversation themselves;
    no document of the wire protocol is one.
    """

    prompt: str = ""
    messages: tuple[Said, ...] = ()

    @property
    def num_chars(self) -> int:
        """The length of all text in it."""
        return sum(len(part) for said in self.messages for part in said.parts if part is not None)


class InputTensor(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One input of a step, as the Open Inference Protocol has it; what is left out is as the model declares it."""

    name: str
    data: Any
    datatype: str | None = None
    shape: Annotated[tuple[_Count, ...], Meta(max_length=16)] | None = None


class OutputName(Struct, frozen=True, forbid_unknown_fields=True):
    """One output that a step asks for."""

    name: str


class SequenceParameters(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What Triton's clients say of the sequence."""

    sequence_id: int | str | None = None
    sequence_start: bool = False
    sequence_end: bool = False


class Step(Command, frozen=True, tag="step", kw_only=True):
    """One step of a model with recurrent state. `start` begins the sequence anew, `end` closes it behind this step."""

    inputs: tuple[InputTensor, ...] = ()
    outputs: tuple[OutputName, ...] = ()  # none: all
    start: bool = False
    end: bool = False
    turn: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    id: Annotated[str, Meta(max_length=256)] | None = None
    parameters: SequenceParameters = SequenceParameters()


class Cancel(Command, frozen=True, tag="cancel"):
    """Ends the turn in progress; what was generated is kept."""


class Close(Command, frozen=True, tag="close"):
    """Ends the session."""


class Info(Command, frozen=True, tag="info"):
    """Asks for the figures of one session."""


class Continue(Command, frozen=True, tag="continue", kw_only=True):
    """Asks for the text of a turn behind its first `after` characters."""

    turn: Annotated[int, Meta(ge=1, le=2**31)]
    after: _Count = 0
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0


class Fork(Command, frozen=True, tag="fork", kw_only=True):
    """Opens a session with the history of this one: all of it, or the first `at_turn` turns.

    The new session is `new_session_id`, which the server makes where a client names none. Without `metadata` it has this one's.
    """

    new_session_id: str | None = None
    at_turn: _Count | None = None
    ttl_s: _Seconds | None = None
    metadata: _Metadata | None = None


class Rewind(Command, frozen=True, tag="rewind", kw_only=True):
    """Forgets every turn behind the first `to_turn`."""

    to_turn: _Count


class Upload(Command, frozen=True, tag="upload", kw_only=True):
    """One part of an image file, for prompts of the session to refer to: the parts in order are the file of that SHA-256.

    `base64` is the part, unless it comes as the file part of a form.
    """

    sha256: _Sha256
    part: _Count = 0
    parts: Annotated[int, Meta(ge=1, le=1000)] = 1
    base64: str | None = None


class Hello(Command, frozen=True, tag="hello"):
    """Asks what server this is."""


Request = Open | Prompt | Step | Cancel | Close | Info | Continue | Fork | Rewind | Upload | Hello
AnyRequest = Request | Chat  # what an engine is asked
_TYPES = tuple(cls.__struct_config__.tag for cls in Request.__args__)


def parse_request(document: dict[str, Any]) -> Request:
    """The typed request in a JSON object.

    Raises:
        InvalidRequest: unknown `type` or field, wrong type or range; `field` names it.
    """
    if "type" not in document:
        kind = "prompt" if "prompt" in document else "step" if "inputs" in document else None
        document = {"type": kind, **document}
    if document.get("type") not in _TYPES:
        raise InvalidRequest(f"`type` must be one of {', '.join(map(str, _TYPES))}", field="type")
    _refuse_non_finite(document)
    request: Request = convert(document, Request)
    return request


def _refuse_non_finite(document: dict[str, Any]) -> None:
    # A number like 1e400 is JSON, and infinite where it has become a float. What is told of a session must not be lost either.
    metadata = document.get("metadata")
    nested = metadata.values() if isinstance(metadata, dict) else ()
    for field, value in (*document.items(), *(("metadata[...]", value) for value in nested)):
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequest("must be a finite number", field=field)
