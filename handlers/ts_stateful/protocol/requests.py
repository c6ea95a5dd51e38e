"""Requests of the wire protocol as typed structs."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.generation import (
    LogitBias,
    MinP,
    Penalty,
    RepetitionPenalty,
    StopStrings,
    StopTokenIds,
    Tokens,
    TopLogprobs,
    TopP,
)
from ts_stateful.protocol.response_format import ResponseFormat
from ts_stateful.protocol.strict_json import convert, refuse_non_finite
from ts_stateful.protocol.unknown import meant

__all__ = [
    "Audio",
    "Cancel",
    "Close",
    "Command",
    "Continue",
    "Fork",
    "Hello",
    "Image",
    "Info",
    "InputTensor",
    "Media",
    "Metadata",
    "Open",
    "OutputName",
    "Prompt",
    "Request",
    "Rewind",
    "SequenceParameters",
    "Shape",
    "Step",
    "Upload",
    "parse_request",
]

_Count = Annotated[int, Meta(ge=0, le=2**31)]
_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # messages to an engine hold no more
_MetadataKey = Annotated[str, Meta(max_length=64)]
_MetadataText = Annotated[str, Meta(max_length=512)]
_Seconds = Annotated[float, Meta(gt=0)]
_Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Turn = Annotated[int, Meta(ge=1, le=2**31)]
Shape = Annotated[tuple[_Count, ...], Meta(max_length=16)]


# The bounds are those of OpenAI's API, which has no values but strings.
Metadata = Annotated[
    dict[_MetadataKey, _MetadataText | _Int64 | float | bool | None], Meta(max_length=16)
]


class Media(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One file: exactly one of a URL, base64 text, or the SHA-256 of a file uploaded to the session."""

    url: str | None = None
    base64: str | None = None
    upload: _Sha256 | None = None

    def __post_init__(self) -> None:
        if (self.url, self.base64, self.upload).count(None) != 2:
            raise ValueError("a file needs exactly one of `url`, `base64` and `upload`")

    @property
    def kind(self) -> str:
        """Return the field of requests that has such files."""
        return "images"


class Image(Media, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One image."""


class Audio(Media, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One clip of audio."""

    @property
    def kind(self) -> str:
        """See `Media`."""
        return "audio"


class Command(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="type",
    kw_only=True,
):
    """A request; `session_id` is None if it has no session yet."""

    session_id: str | None = None


class _WithMedia(Command, frozen=True, kw_only=True):
    images: tuple[Image, ...] = ()
    audio: tuple[Audio, ...] = ()

    @property
    def media(self) -> tuple[Media, ...]:
        """Return the files in their order."""
        return (*self.images, *self.audio)


class Open(_WithMedia, frozen=True, tag="open", kw_only=True):
    """A request to open a session with a system prompt and images or audio; an `adapter` computes all of its replies."""

    system: str | None = None
    ttl_s: _Seconds | None = None
    metadata: Metadata = {}
    adapter: str | None = None


class Prompt(_WithMedia, frozen=True, tag="prompt", kw_only=True):
    """One turn: the user's text and images or audio, and the settings of the generation.

    Without `repetition_penalty` that of the model's generation_config.json applies. `logprobs` asks for the log-probability of
    each token of the reply, `top_logprobs` for so many of the likeliest ones beside each. An `adapter` is that of the session.
    """

    prompt: str
    stream: bool = False
    max_new_tokens: Tokens = 256
    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0
    top_p: TopP = 1.0
    top_k: _Count = 0
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: LogitBias = {}
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    stop: StopStrings = ()
    stop_token_ids: StopTokenIds = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    response_format: ResponseFormat | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs = 0
    turn: _Turn | None = None
    adapter: str | None = None

    def __post_init__(self) -> None:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("the field `top_logprobs` needs `logprobs: true`")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Return `stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop

    @property
    def num_chars(self) -> int:
        """Return the length of the text."""
        return len(self.prompt)


class InputTensor(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One input of a step in the Open Inference Protocol's form; the model's declaration fills in what is left out.

    `data` is JSON, or of a client with binary tensors the elements as bytes.
    """

    name: str
    data: Any
    datatype: str | None = None
    shape: Shape | None = None


class OutputName(Struct, frozen=True, forbid_unknown_fields=True):
    """One requested output of a step."""

    name: str


class SequenceParameters(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The parameters with which Triton's clients name a sequence."""

    sequence_id: int | str | None = None
    sequence_start: bool = False
    sequence_end: bool = False


class Step(Command, frozen=True, tag="step", kw_only=True):
    """One step of a model with recurrent state. `start` restarts the sequence, `end` closes it after this step."""

    inputs: tuple[InputTensor, ...] = ()
    outputs: tuple[OutputName, ...] = ()  # empty: all
    start: bool = False
    end: bool = False
    turn: _Turn | None = None
    id: Annotated[str, Meta(max_length=256)] | None = None
    parameters: SequenceParameters = SequenceParameters()


class Cancel(Command, frozen=True, tag="cancel"):
    """A request to end the turn in progress, and keep the text so far."""


class Close(Command, frozen=True, tag="close"):
    """A request to end the session.

    With `erase` it is answered after the store has nothing of the session, which may have ended or be unknown.
    """

    erase: bool = False


class Info(Command, frozen=True, tag="info"):
    """A request for the statistics of one session."""


class Continue(Command, frozen=True, tag="continue", kw_only=True):
    """A request for the text of a turn after its first `after` characters."""

    turn: _Turn
    after: _Count = 0
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0


class Fork(Command, frozen=True, tag="fork", kw_only=True):
    """A request to open a session with the history of this one: all of it, or the first `at_turn` turns.

    The server makes `new_session_id` if the client names none. Without `metadata`, the new session has that of this one.
    """

    new_session_id: str | None = None
    at_turn: _Count | None = None
    ttl_s: _Seconds | None = None
    metadata: Metadata | None = None


class Rewind(Command, frozen=True, tag="rewind", kw_only=True):
    """A request to forget every turn after the first `to_turn`."""

    to_turn: _Count


class Upload(Command, frozen=True, tag="upload", kw_only=True):
    """One part of an image file. All parts in order are the file of this SHA-256, by which prompts of the session name it.

    `base64` is the part, unless it is the file part of a form.
    """

    sha256: _Sha256
    part: _Count = 0
    parts: Annotated[int, Meta(ge=1, le=1000)] = 1
    base64: str | None = None


class Hello(Command, frozen=True, tag="hello"):
    """A request for the server's description."""


Request = Open | Prompt | Step | Cancel | Close | Info | Continue | Fork | Rewind | Upload | Hello
_TYPES: dict[str, type[Request]] = {cls.__struct_config__.tag: cls for cls in Request.__args__}


def parse_request(document: dict[str, Any]) -> Request:
    """Parse a request from a JSON object.

    Raises:
        InvalidRequest: unknown `type` or field, wrong type or range; `field` names it.
    """
    if "type" not in document:
        kind = "prompt" if "prompt" in document else "step" if "inputs" in document else None
        document = {"type": kind, **document}
    kind = document.get("type")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise InvalidRequest(
            f"`type` must be one of {', '.join(_TYPES)}{meant(document, tuple(_TYPES))}",
            field="type",
        )
    refuse_non_finite(document)
    # By its own type: for a union msgspec puts its parser together in every call, which takes ten times as long.
    request: Request = convert(document, _TYPES[kind])
    return request
