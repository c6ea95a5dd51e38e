"""Sessions of a table whose tensors are numbers of bytes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.clock import FakeClock
from ts_stateful.sessions.places import Limits, Owners
from ts_stateful.sessions.session import Residency
from ts_stateful.sessions.shared import SharedCache
from ts_stateful.sessions.table import SessionTable

__all__ = ["OneOwner", "Picture", "State", "table"]


@dataclass(eq=False)
class Picture:
    """Something that sessions share."""

    key: str
    num_bytes: int = 10


@dataclass
class State:
    """So many bytes, somewhere, and what it shares."""

    size: int = 10
    residency: Residency = Residency.DEVICE
    cost: float = 1.0
    shared: Sequence[Picture] = field(default=())
    released: bool = False

    @property
    def device_bytes(self) -> int:
        return self.size if self.residency is Residency.DEVICE else 0

    @property
    def host_bytes(self) -> int:
        return self.size if self.residency is Residency.HOST else 0

    def to_host(self) -> None:
        self.residency = Residency.HOST

    def release(self) -> None:
        """See `SessionState`."""
        self.released = True

    def to_record(self) -> None:
        self.residency = Residency.RECORD


class OneOwner:
    """All sessions belong together, without a limit of their own."""

    def owner_of(self, session_id: str) -> str | None:
        """See `Owners`."""
        return None

    def max_sessions(self, owner: str | None) -> int | None:
        """See `Owners`."""
        return None

    def max_parked(self, owner: str | None) -> int:
        """See `Owners`."""
        return sys.maxsize


def table(
    clock: FakeClock | None = None,
    shared: SharedCache[Picture] | None = None,
    owners: Owners | None = None,
    **limits: object,
) -> SessionTable[State]:
    made = Limits(**{"max_sessions": 4, "idle_s": 60.0, "lifetime_s": 600.0, **limits})  # type: ignore[arg-type]
    return SessionTable(
        made,
        SharedCache(0) if shared is None else shared,
        owners or OneOwner(),
        clock or FakeClock(),
        lambda state: state.cost,
    )
