"""A session between its turns.

What a model keeps for it is the opaque `state`: only bytes by tier and the way down the tiers are known here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ts_stateful.protocol.answers import Timing, Usage
from ts_stateful.protocol.chat import Parsing
from ts_stateful.protocol.logprobs import TokenLogprob
from ts_stateful.protocol.tenants import tenant_of
from ts_stateful.sessions.shared import Shareable

__all__ = ["Delta", "Message", "Residency", "Session", "SessionState", "Turn"]


class Residency(enum.Enum):
    """The tier that holds the tensors of a session, from the highest down."""

    DEVICE = "device"
    HOST = "host"
    STORE = "store"  # in the store of sessions, with the record
    RECORD = "record"  # nowhere: they are computed again from token ids and image embeddings


class SessionState(Protocol):
    """A model's state of a session, as the table sees it."""

    @property
    def residency(self) -> Residency:
        """The tier that holds the tensors."""

    @property
    def device_bytes(self) -> int:
        """Bytes on the device, shared ones not counted."""

    @property
    def host_bytes(self) -> int:
        """Bytes in host memory, if that is not the device itself."""

    @property
    def shared(self) -> Sequence[Shareable]:
        """The things that it shares with other sessions."""

    def to_host(self) -> None:
        """Move the tensors from the device to host memory."""

    def to_record(self) -> None:
        """Drop everything that can be read again, or computed from the record."""

    def release(self) -> None:
        """Release what it holds: its session has ended."""


StateT = TypeVar("StateT", bound=SessionState)


class Message(NamedTuple):
    """A message: `text` with its control tokens marked, after `num_images` images.

    For another order, `parts` has the texts, and a None for each image. `fields` is the JSON object of what else chat templates
    get: calls of tools, or the id of the call that a result belongs to. A reply may have `reasoning`, which makes no other
    conversation of one. `generated` is its whole text as the model wrote it, if that is not `text`.
    """

    role: str
    text: str
    num_images: int = 0
    parts: tuple[str | None, ...] = ()
    fields: str = ""
    reasoning: str = ""
    generated: str = ""

    @property
    def identity(self) -> tuple[str, tuple[str | None, ...], str]:
        """The same for messages that say the same, images left out."""
        return self.role, self.layout, self.fields

    @property
    def layout(self) -> tuple[str | None, ...]:
        """Texts, and a None for each image, in their order."""
        return self.parts or (None,) * self.num_images + (self.text,)

    def after_images(self, num_images: int) -> Message:
        """Return the same message after so many more images."""
        parts = (None,) * num_images + self.layout
        return self._replace(num_images=self.num_images + num_images, parts=parts)


_OBJECTS: dict[int, int] = {}  # of each token id that a session has


@dataclass(frozen=True, slots=True)
class Delta:
    """The change that a turn, or the opening of a session, makes to the history; a history is its deltas in order.

    Of the log of token ids the first `keep` stayed and `ids` followed. Of the rendered conversation, which ends where the last
    reply begins, the first `keep_chars` characters stayed and `rendered` followed. `num_images` images were new.
    """

    keep: int = 0
    ids: tuple[int, ...] = ()
    keep_chars: int = 0
    rendered: str = ""
    messages: tuple[Message, ...] = ()
    num_images: int = 0
    has_reply: bool = True  # False for a turn that only adds messages

    def __post_init__(self) -> None:
        """Let equal ids be one object: a tokenizer makes one of 32 bytes for each token, of which sessions keep millions."""
        object.__setattr__(self, "ids", tuple(map(_OBJECTS.setdefault, self.ids, self.ids)))


@dataclass(frozen=True, slots=True)
class Turn:
    """A committed turn: all that a replayed answer needs and, in `delta`, all that the history needs."""

    number: int
    text: str
    finish_reason: str
    usage: Usage
    timing: Timing
    delta: Delta
    origin: str = ""  # id of the request
    logprobs: tuple[TokenLogprob, ...] = ()  # of the reply's tokens, if they were asked for
    parsing: Parsing | None = None  # of the reply, whose `text` has all that it wrote
    note: str = ""  # of the client's protocol
    copied: bool = False  # into a branch: it is no response of this session


class _Referable:
    __slots__ = ("__weakref__",)


@dataclass(eq=False, slots=True)
class Session(_Referable, Generic[StateT]):
    """A session in the table. Times are of the table's monotonic clock, in seconds."""

    session_id: str
    state: StateT
    opened_at: float
    expires_at: float  # absolute: use does not postpone it
    idle_s: float  # idleness after which it expires
    last_used: float
    metadata: Mapping[str, object] = field(default_factory=dict)
    origin: str = ""  # id of the request that opened it
    ephemeral: bool = False  # it ends with the answer
    yields: bool = False  # it ends if another one needs its place
    owner: str | None = None  # see `Owners`
    turns: list[Turn] = field(default_factory=list)
    # What is not answered yet, in order; the first is in progress.
    work: list[Any] = field(default_factory=list)

    @property
    def tenant(self) -> object:
        """Sessions share computed things only with sessions of the same tenant; None if it has none."""
        return tenant_of(self.session_id) or self.metadata.get("tenant")

    @property
    def busy(self) -> bool:
        """True if something is in progress; a busy session is neither idle nor evicted."""
        return bool(self.work)

    @property
    def deadline(self) -> float:
        """The time at which it expires if nothing happens; the absolute end waits for a turn in progress."""
        return self.expires_at if self.busy else min(self.expires_at, self.last_used + self.idle_s)
