"""A session between its turns.

What a model keeps for it is the opaque `state`: only bytes by tier and the way down the tiers are known here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ts_stateful.protocol.tenants import tenant_of
from ts_stateful.sessions.shared import Shareable

__all__ = ["Residency", "Session", "SessionState"]


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
