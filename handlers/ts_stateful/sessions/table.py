"""Which sessions are open, in the order of their use, and which of them keep their tensors.

Owns the LRU, the byte budgets, who is evicted next, idle and absolute expiry, and the memory of sessions that have ended. Knows
nothing of models or transports and never imports torch: it is tested on plain integers. The clock is a constructor argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple

from lru import LRU

from ts_stateful.protocol.errors import (
    SessionClosed,
    SessionError,
    SessionExists,
    SessionExpired,
    SessionNotFound,
    TooManySessions,
)
from ts_stateful.sessions.session import Residency, Session, StateT
from ts_stateful.sessions.shared import SharedCache

__all__ = ["Limits", "SessionTable"]

_REMEMBER_S = 3600.0
# Of ended sessions; the oldest are forgotten first and then answer as unknown.
_REMEMBER_COUNT = 100_000


class Limits(NamedTuple):
    """`max_sessions` open at once; seconds of idleness and of life; bytes on the device and in host memory."""

    max_sessions: int
    idle_s: float
    lifetime_s: float
    device_bytes: int | None = None
    host_bytes: int = 0


class _Ended(NamedTuple):
    at: float
    error: type[SessionError]


class SessionTable(Generic[StateT]):
    """The open sessions of one engine; `shared` is what they have in common. `on_expired` hears of each that ran out.

    `recompute_cost` says what it takes to have the tensors of a session again once they are dropped: for each of their bytes,
    above 0, in whatever unit.
    """

    def __init__(
        self,
        limits: Limits,
        shared: SharedCache[Any],
        clock: Callable[[], float] = time.monotonic,
        on_expired: Callable[[Session[StateT]], None] = lambda session: None,
        recompute_cost: Callable[[StateT], float] = lambda state: 1.0,
    ) -> None:
        self._rebuild_cost = recompute_cost
        self._on_expired = on_expired
        self._limits = limits
        self._shared = shared
        self._clock = clock
        self._sessions: LRU[str, Session[StateT]] = LRU(limits.max_sessions)
        self._ended: LRU[str, _Ended] = LRU(_REMEMBER_COUNT)

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sessions

    def __iter__(self) -> Iterator[Session[StateT]]:
        """The sessions, most recently used first."""
        return iter(self._sessions.values())

    def open(
        self,
        session_id: str,
        state: StateT,
        *,
        ttl_s: float | None = None,
        metadata: dict[str, object] | None = None,
        origin: str = "",
    ) -> Session[StateT]:
        """Opens a session; `ttl_s` shortens its lifetime, never prolongs it. `origin` is the request that asked for it.

        Raises:
            SessionExists: a session of that id is open.
            TooManySessions: the table is full, after what has expired was removed.
        """
        self.expire()
        if session_id in self._sessions:
            raise SessionExists("a session of this id is open already", field="session_id")
        self._check_place()
        now = self._clock()
        lifetime_s = min(ttl_s or self._limits.lifetime_s, self._limits.lifetime_s)
        session = Session(
            session_id=session_id,
            state=state,
            opened_at=now,
            expires_at=now + lifetime_s,
            idle_s=self._limits.idle_s,
            last_used=now,
            metadata=metadata or {},
            origin=origin,
        )
        self._sessions[session_id] = session
        self._ended.pop(session_id, None)
        return session

    def adopt(self, session: Session[StateT], *, in_use: bool = False) -> None:
        """Takes in a session that was opened elsewhere; its own times count.

        Its idle time goes on, unless it was `in_use` when it was lost: then nobody was there to serve it since.

        Raises:
            SessionExpired: its time is up.
            TooManySessions: the table is full, after what has expired was removed.
        """
        session.idle_s = self._limits.idle_s
        if in_use:
            session.last_used = self._clock()
        if self._clock() >= session.deadline:
            raise SessionExpired("the session has expired")
        self.expire()
        self._check_place()
        self._sessions[session.session_id] = session
        self._ended.pop(session.session_id, None)  # here, but not where it comes from

    def get(self, session_id: str) -> Session[StateT]:
        """The open session of that id; counts as a use for eviction, but does not postpone expiry.

        Raises:
            SessionNotFound, SessionExpired, SessionClosed: there is none, by what became of it.
        """
        session = self._sessions.get(session_id)
        if session is not None:
            now = self._clock()
            if now < session.deadline:
                return session
            if session.busy:  # past its absolute end, in its last turn
                raise SessionExpired("the session has expired")
            self._end(session, SessionExpired)
        ended = self._ended.get(session_id)
        if ended is None or self._clock() - ended.at >= _REMEMBER_S:
            raise SessionNotFound("no session of this id is open here", field="session_id")
        what = "has expired" if ended.error is SessionExpired else "was closed"
        raise ended.error(f"the session {what}")

    def touch(self, session: Session[StateT]) -> None:
        """Counts a use now: the session becomes the most recent one and its idle time starts anew."""
        session.last_used = self._clock()
        self._sessions[session.session_id] = session  # moves it to the front of the LRU

    def renew(self, session: Session[StateT]) -> None:
        """Gives an open session the lifetime of one that is opened now."""
        session.opened_at = now = self._clock()
        session.expires_at = now + self._limits.lifetime_s
        self.touch(session)

    def close(self, session: Session[StateT]) -> None:
        """Ends an open session; its id answers `session_closed` for an hour."""
        self._end(session, SessionClosed)

    def forget(self, session: Session[StateT]) -> None:
        """Takes back an `open` that failed: the id answers as if it had never existed.

        A session that is not here any more stays so, and who has its id by now is not disturbed.
        """
        if self._sessions.get(session.session_id) is session:
            session.state.release()
            del self._sessions[session.session_id]

    def expire(self) -> list[Session[StateT]]:
        """Ends every session whose time is up and that is not busy; returns them."""
        now = self._clock()
        due = [session for session in self if not session.busy and now >= session.deadline]
        for session in due:
            self._end(session, SessionExpired)
        return due

    def next_deadline(self) -> float | None:
        """The clock's time at which `expire` has something to do, or None."""
        return min((session.deadline for session in self if not session.busy), default=None)

    @property
    def device_bytes(self) -> int:
        """Bytes on the device: what each session holds, and once what they share or have shared."""
        return self._shared.num_bytes + sum(session.state.device_bytes for session in self)

    @property
    def host_bytes(self) -> int:
        """Bytes that all sessions hold in host memory."""
        return sum(session.state.host_bytes for session in self)

    def leaving(self) -> list[Session[StateT]]:
        """The idle sessions in memory, in the order in which they leave it."""
        return [*self._dropping(Residency.HOST), *self._dropping(Residency.DEVICE)]

    @property
    def budget_bytes(self) -> float:
        """Bytes of the device and of host memory together."""
        device = self._limits.device_bytes
        return float("inf") if device is None else device + self._limits.host_bytes

    def make_room(self, num_bytes: int, *, spared: Session[StateT] | None = None) -> bool:
        """Evicts idle sessions but the one `spared` until `num_bytes` more fit the device's budget.

        Returns whether they fit; where they cannot, nobody is evicted in vain. Sessions stay open; their tensors go to host
        memory, the least recently used first, if that has room, else they are dropped, and made again when they are needed.
        """
        budget = self._limits.device_bytes
        excess = 0 if budget is None else self.device_bytes + num_bytes - budget
        if excess <= 0:
            return True
        # To copy something to the host and back costs the same for each byte, whosever it is.
        idle = (self._idle if self._limits.host_bytes else self._dropping)(Residency.DEVICE)
        idle = [session for session in idle if session is not spared]
        evictable = sum(session.state.device_bytes for session in idle)
        if excess > evictable + self._shared.kept_bytes:
            return False
        excess -= self._shared.evict(excess)  # what no session uses goes first
        for session in idle:
            if excess <= 0:
                break
            excess -= self._evict(session)
        return excess <= 0

    def evict_idle(self) -> None:
        """Evicts what no session uses and every session that is not busy: the last resort before an out-of-memory error."""
        self._shared.evict()
        for session in self._idle(Residency.DEVICE):
            self._evict(session)

    def check_integrity(self) -> None:
        """Asserts what must hold between any two calls."""
        self._shared.check_integrity()
        assert len(self._sessions) <= self._limits.max_sessions
        for session_id, session in self._sessions.items():
            assert session.session_id == session_id
            assert session_id not in self._ended
            assert session.opened_at <= session.last_used
            assert [turn.number for turn in session.turns] == list(range(1, len(session.turns) + 1))

    def _evict(self, session: Session[StateT]) -> int:
        """Moves an idle session from the device one step down or further; returns the bytes that the device has got back."""
        state = session.state
        before = state.device_bytes
        if self._limits.host_bytes and self._host_room_for(before):
            state.to_host()
        else:
            state.to_record()
        return before - state.device_bytes

    def _idle(self, tier: Residency) -> list[Session[StateT]]:
        """The idle sessions of a tier, the least recently used first."""
        return [s for s in reversed(list(self)) if s.state.residency is tier and not s.busy]

    def _dropping(self, tier: Residency) -> list[Session[StateT]]:
        """The idle sessions of a tier, in the order in which they are dropped from it."""
        # The least recently used first, but who costs twice as much to rebuild, for each byte that dropping it frees, may be
        # unused for twice as long. Sorting is stable: where nothing differs, it is the order of the LRU.
        now, cost = self._clock(), self._rebuild_cost
        return sorted(self._idle(tier), key=lambda s: (s.last_used - now) / cost(s.state))

    def _host_room_for(self, num_bytes: int) -> bool:
        if num_bytes > self._limits.host_bytes:
            return False
        excess = self.host_bytes + num_bytes - self._limits.host_bytes
        for session in self._dropping(Residency.HOST) if excess > 0 else ():
            if excess <= 0:
                break
            before = session.state.host_bytes
            session.state.to_record()
            excess -= before - session.state.host_bytes
        return excess <= 0

    def _end(self, session: Session[StateT], error: type[SessionError]) -> None:
        self._shared.keep(session.state.shared)
        session.state.release()
        del self._sessions[session.session_id]
        self._ended[session.session_id] = _Ended(self._clock(), error)
        if error is SessionExpired:
            self._on_expired(session)

    def _check_place(self) -> None:
        if len(self._sessions) >= self._limits.max_sessions:
            raise TooManySessions(
                "as many sessions are open as maxNumSequence allows",
                retry_after_s=self._retry_after_s(),
            )

    def _retry_after_s(self) -> float:
        deadline = self.next_deadline()
        return 1.0 if deadline is None else max(1.0, round(deadline - self._clock(), 1))
