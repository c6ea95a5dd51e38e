"""The memory of sessions that left the table for the store, until the store drops them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from ts_stateful.clock import Clock
from ts_stateful.sessions.session import Session

__all__ = ["ParkedSessions"]

_FEW = 1000  # entries that need no cleaning


class _Parked(NamedTuple):
    owner: str | None
    deadline: float  # of the session, which the store may take to be idle for longer than it was
    expires_at: float  # until when the store has it


class ParkedSessions:
    """The parked sessions of a table, by id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parked: dict[str, _Parked] = {}
        self._counts: Counter[str | None] = Counter()
        self._clean_at = _FEW

    def __contains__(self, session_id: object) -> bool:
        """Return True if a session of this id was parked, and has not expired."""
        parked = self._parked.get(session_id) if isinstance(session_id, str) else None
        return parked is not None and self._clock.monotonic() < parked.deadline

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids of parked sessions that have not expired."""
        now = self._clock.monotonic()
        return (name for name, parked in self._parked.items() if now < parked.deadline)

    def has_room(self, owner: str | None, most: int) -> bool:
        """Return True if the store has fewer than `most` parked sessions of an owner."""
        if self._counts[owner] >= most:
            self._clean()
        return self._counts[owner] < most

    def add(self, session: Session[Any]) -> None:
        """Remember a session that is being parked."""
        if len(self._parked) >= self._clean_at:
            self._clean()
            self._clean_at = max(_FEW, 2 * len(self._parked))
        self.forget(session.session_id)
        parked = _Parked(session.owner, session.deadline, session.expires_at)
        self._parked[session.session_id] = parked
        self._counts[session.owner] += 1

    def forget(self, session_id: str) -> None:
        """Forget an id that is in use again."""
        parked = self._parked.pop(session_id, None)
        if parked is not None:
            self._counts[parked.owner] -= 1
            if not self._counts[parked.owner]:
                del self._counts[parked.owner]

    def _clean(self) -> None:
        now = self._clock.monotonic()
        for session_id in [each for each, one in self._parked.items() if now >= one.expires_at]:
            self.forget(session_id)
