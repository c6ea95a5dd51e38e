"""Sums over the sessions of a table, kept so that no request has to look at all of them, and counts of their changes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple

from ts_stateful.sessions.session import Session, StateT

__all__ = ["TableCounts", "Tally"]


@dataclass
class TableCounts:
    """Sessions by the way in which they came and went, those of single requests included.

    `evicted` counts each time that a session's tensors left the device for want of room.
    """

    opened: int = 0
    adopted: int = 0
    closed: int = 0
    expired: int = 0
    parked: int = 0
    evicted: int = 0


class _Bytes(NamedTuple):
    device: int
    host: int


class Tally(Generic[StateT]):
    """Numbers of sessions, their bytes, and a time before which none of them expires.

    A session's bytes may change while it is busy, and otherwise only beside a call of `changed`.
    """

    def __init__(self) -> None:
        self.num_ephemeral = 0
        self._kept: Counter[str | None] = Counter()  # by owner
        self._bytes: dict[Session[StateT], _Bytes] = {}
        self._device = self._host = 0
        self._changing: set[Session[StateT]] = set()
        self._earliest = math.inf

    def __contains__(self, session: object) -> bool:
        """Return True for a session of the table, and not for another one of its id."""
        return session in self._bytes

    @property
    def num_kept(self) -> int:
        """The sessions that are kept between requests."""
        return self._kept.total()

    def num_kept_of(self, owner: str | None) -> int:
        """Return the number of an owner's sessions that are kept between requests."""
        return self._kept[owner]

    def add(self, session: Session[StateT]) -> None:
        """Count a session that is new in the table."""
        self._count(session, 1)
        self._bytes[session] = _Bytes(0, 0)
        self._changing.add(session)
        self.shortened(session)

    def remove(self, session: Session[StateT]) -> None:
        """Count a session no more."""
        self._count(session, -1)
        self._changing.discard(session)
        removed = self._bytes.pop(session)
        self._device -= removed.device
        self._host -= removed.host

    def changed(self, session: Session[StateT]) -> None:
        """Note that a session is used, or that its bytes changed."""
        if session not in self._changing and session in self._bytes:
            self._changing.add(session)

    def shortened(self, session: Session[StateT]) -> None:
        """Note that a session may expire earlier than before."""
        end = min(session.expires_at, session.last_used + session.idle_s)
        self._earliest = min(self._earliest, end)

    @property
    def device_bytes(self) -> int:
        """Bytes of all sessions on the device."""
        self._measure()
        return self._device

    @property
    def host_bytes(self) -> int:
        """Bytes of all sessions in host memory."""
        self._measure()
        return self._host

    def may_expire(self, now: float) -> bool:
        """Return False if certainly no session has expired."""
        return now >= self._earliest

    def looked(self, sessions: Iterable[Session[StateT]], now: float) -> None:
        """Take the times of all sessions: after a turn, the idle time of a busy one begins again."""
        ends = (min(s.expires_at, (now if s.busy else s.last_used) + s.idle_s) for s in sessions)
        self._earliest = min(ends, default=math.inf)

    def check_integrity(self, sessions: Iterable[Session[StateT]]) -> None:
        """Assert that the sums are those of these sessions, all of the table."""
        found = list(sessions)
        assert set(found) == set(self._bytes)
        assert self.num_ephemeral == sum(session.ephemeral for session in found)
        assert +self._kept == Counter(s.owner for s in found if not s.ephemeral)
        assert self.device_bytes == sum(session.state.device_bytes for session in found)
        assert self.host_bytes == sum(session.state.host_bytes for session in found)
        idle = [session.deadline for session in found if not session.busy]
        assert self._earliest <= min(idle, default=math.inf)

    def _count(self, session: Session[StateT], number: int) -> None:
        if session.ephemeral:
            self.num_ephemeral += number
        else:
            self._kept[session.owner] += number
            if not self._kept[session.owner]:
                del self._kept[session.owner]

    def _measure(self) -> None:
        for session in list(self._changing):
            before = self._bytes[session]
            now = _Bytes(session.state.device_bytes, session.state.host_bytes)
            self._bytes[session] = now
            self._device += now.device - before.device
            self._host += now.host - before.host
            if not session.busy:
                self._changing.remove(session)
