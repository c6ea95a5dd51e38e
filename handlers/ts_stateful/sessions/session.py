"""What a session is between and around its turns.

Owns a session's identity, its times and its committed turns. Knows neither the model nor tensors: what a model keeps for a
session is the opaque `state`, of which only the bytes in each tier and the way down the ladder are known here.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ts_stateful.protocol.answers import Timing, Usage
from ts_stateful.sessions.shared import Shareable

__all__ = ["Delta", "Message", "Residency", "Session", "SessionState", "Turn"]


class Residency(enum.Enum):
    """Where the tensors of a session are, from the top of the ladder down."""

    DEVICE = "device"
    HOST = "host"
    STORE = "store"  # in the store of sessions, with the record
    RECORD = "record"  # only what a rebuild needs: token ids and image embeddings


class SessionState(Protocol):
    """What an engine keeps for a session, as the table sees it."""

    @property
    def residency(self) -> Residency:
        """Where the tensors are now."""
        ...

    @property
    def device_bytes(self) -> int:
        """Bytes of storage on the device, without what is shared."""
        ...

    @property
    def host_bytes(self) -> int:
        """Bytes of storage in host memory (where that is not the device itself)."""
        ...

    @property
    def shared(self) -> Sequence[Shareable]:
        """What it uses together with other sessions."""
        ...

    def to_host(self) -> None:
        """Moves the tensors from the device to host memory."""
        ...

    def to_record(self) -> None:
        """Drops everything that can be read again, or computed from the record."""
        ...

    def release(self) -> None:
        """Gives back what it holds: its session has ended."""
        ...


StateT = TypeVar("StateT", bound=SessionState)


class Message(NamedTuple):
    """What somebody said: `text` with its control tokens marked, behind `num_images` images.

    Where texts and images come in another order, `parts` has it: texts, and a None for each image.
    """

    role: str
    text: str
    num_images: int = 0
    parts: tuple[str | None, ...] = ()

    @property
    def layout(self) -> tuple[str | None, ...]:
        """Texts, and a None for each image, in their order."""
        return self.parts or (None,) * self.num_images + (self.text,)

    def behind(self, num_images: int) -> Message:
        """The same message behind so many more images."""
        parts = (None,) * num_images + self.layout
        return Message(self.role, self.text, self.num_images + num_images, parts)


@dataclass(frozen=True)
class Delta:
    """What one turn, or the opening of a session, has made of the history before it; a history is its deltas in order.

    Of the log of token ids the first `keep` stayed and `ids` followed. Of the rendered conversation, which ends where the last
    reply begins, the first `keep_chars` characters stayed and `rendered` followed. `num_images` images were new.
    """

    keep: int = 0
    ids: tuple[int, ...] = ()
    keep_chars: int = 0
    rendered: str = ""
    messages: tuple[Message, ...] = ()
    num_images: int = 0


@dataclass(frozen=True)
class Turn:
    """A committed turn: immutable, all that a replayed answer needs, and by `delta` all that the history needs of it."""

    number: int
    text: str
    finish_reason: str
    usage: Usage
    timing: Timing
    delta: Delta
    origin: str = ""  # the request that asked for it


@dataclass(eq=False)
class Session(Generic[StateT]):
    """A session in the table. Times are of the table's monotonic clock, in seconds."""

    session_id: str
    state: StateT
    opened_at: float
    expires_at: float  # absolute: use does not postpone it
    idle_s: float  # idleness after which it expires
    last_used: float
    metadata: Mapping[str, object] = field(default_factory=dict)
    origin: str = ""  # the request that opened it
    turns: list[Turn] = field(default_factory=list)
    # What is not answered yet, in order; the first is in progress.
    work: deque[Any] = field(default_factory=deque)

    @property
    def busy(self) -> bool:
        """Whether something is in progress; a busy session is neither idle nor evicted."""
        return bool(self.work)

    @property
    def deadline(self) -> float:
        """When it expires if nothing happens; an absolute end still waits for a turn in progress."""
        return self.expires_at if self.busy else min(self.expires_at, self.last_used + self.idle_s)
