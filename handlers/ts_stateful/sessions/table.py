"""The open sessions in the order of their use, byte budgets, eviction and expiry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic

from lru import LRU

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.protocol.errors import SessionClosed, SessionError, SessionExists, SessionExpired
from ts_stateful.sessions.ended import EndedSessions
from ts_stateful.sessions.places import Limits, Owners, Places, Reserve
from ts_stateful.sessions.session import Residency, Session, StateT
from ts_stateful.sessions.shared import SharedCache
from ts_stateful.sessions.tally import TableCounts

__all__ = ["SessionTable"]


class SessionTable(Generic[StateT]):
    """The open sessions of one engine; `shared` is what they have in common, `places` has the rules for another one.

    `cost` returns the cost of having dropped tensors again, for each byte in any unit; without it every byte costs the same.
    What is in `reserve` leaves the device before anything of a session does.
    """

    def __init__(
        self,
        limits: Limits,
        shared: SharedCache[Any],
        owners: Owners,
        clock: Clock = SYSTEM_CLOCK,
        cost: Callable[[StateT], float] | None = None,
    ) -> None:
        self.counts = TableCounts()
        self._cost = cost
        self._expired: list[Session[StateT]] = []
        self.limits = limits
        self._shared = shared
        self._clock = clock
        self.reserve = Reserve()
        self.places: Places[StateT] = Places(limits.max_sessions, owners, clock)
        self.tally = self.places.tally
        self._sessions: LRU[str, Session[StateT]] = LRU(self.places.most)
        self._ended = EndedSessions(clock)

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sessions

    def __iter__(self) -> Iterator[Session[StateT]]:
        """Iterate over the sessions, most recently used first."""
        return iter(self._sessions.values())

    def open(
        self,
        session_id: str,
        state: StateT,
        *,
        ttl_s: float | None = None,
        metadata: dict[str, object] | None = None,
        origin: str = "",
        ephemeral: bool = False,
        spared: Session[StateT] | None = None,
    ) -> Session[StateT]:
        """Open a session; `ttl_s` shortens its lifetime, never prolongs it. `origin` is the id of the request.

        If there is no place, an idle session of its owner is parked, but not the one `spared`.

        Raises:
            SessionExists: a session of that id is open.
            QuotaExceeded, TooManySessions: there is no place, expired sessions not counted.
        """
        self.expire()
        if session_id in self._sessions:
            raise SessionExists("a session of this id is open already", field="session_id")
        owner = self.places.owners.owner_of(session_id)
        if ephemeral:
            self.places.check_ephemeral()
        else:
            self._make_place(owner, spared)
        now = self._clock.monotonic()
        lifetime_s = min(ttl_s or self.limits.lifetime_s, self.limits.lifetime_s)
        session = Session(
            session_id=session_id,
            state=state,
            opened_at=now,
            expires_at=now + lifetime_s,
            idle_s=self.limits.idle_s,
            last_used=now,
            metadata=metadata or {},
            origin=origin,
            ephemeral=ephemeral,
            owner=owner,
        )
        self._sessions[session_id] = session
        self.tally.add(session)
        self._ended.forget(session_id)
        self.counts.opened += 1
        return session

    def adopt(self, session: Session[StateT], *, in_use: bool = False) -> None:
        """Take in a session that was opened elsewhere; its own times count.

        Its idle time goes on, unless it was `in_use` when its engine died.

        Raises:
            SessionClosed, SessionExpired: it was closed here, or its time is up.
            QuotaExceeded, TooManySessions: there is no place, and none of its owner's sessions can be parked.
        """
        self._ended.check_open(session.session_id, session.origin)
        session.idle_s = self.limits.idle_s
        if in_use:
            session.last_used = self._clock.monotonic()
        if self._clock.monotonic() >= session.deadline:
            raise SessionExpired("the session has expired")
        self.expire()
        session.owner = self.places.owners.owner_of(session.session_id)
        self._make_place(session.owner)
        self._sessions[session.session_id] = session
        self.tally.add(session)
        self._ended.forget(session.session_id)  # it ended here, but not where it comes from
        self.places.parked.forget(session.session_id)
        self.counts.adopted += 1

    def get(self, session_id: str, *, in_turn: bool = False) -> Session[StateT]:
        """Return the open session of that id, now the most recent; with `in_turn` also one past its end, in its last turn.

        Raises:
            SessionNotFound, SessionExpired, SessionClosed: there is none, or it ended.
        """
        session = self._sessions.get(session_id)
        if session is not None:
            if self._clock.monotonic() < session.deadline or (in_turn and session.busy):
                return session
            if session.busy:
                raise SessionExpired("the session has expired")
            self._end(session, SessionExpired)
        raise self._ended.error(session_id)

    def touch(self, session: Session[StateT]) -> None:
        """Count a use: the session becomes the most recent one and its idle time starts again. One that has left stays out."""
        session.last_used = self._clock.monotonic()
        if self._sessions.get(session.session_id) is session:  # which becomes the most recent one
            self.tally.changed(session)

    def renew(self, session: Session[StateT]) -> None:
        """Give an open session the lifetime of one that is opened now."""
        session.opened_at = now = self._clock.monotonic()
        session.expires_at = now + self.limits.lifetime_s
        self.touch(session)

    def close(self, session: Session[StateT]) -> None:
        """End an open session; its id answers `session_closed` for an hour."""
        self._end(session, SessionClosed)

    def forget(self, session: Session[StateT]) -> None:
        """Undo an `open`: the id answers as if it had never existed.

        Another session that has this id by now stays.
        """
        if self._sessions.get(session.session_id) is session:
            self._remove(session)

    def expire(self) -> None:
        """End every session whose time is up and that is not busy."""
        now = self._clock.monotonic()
        if self.tally.may_expire(now):
            for session in [one for one in self if not one.busy and now >= one.deadline]:
                self._end(session, SessionExpired)
            self.tally.looked(self, now)

    def take_expired(self) -> list[Session[StateT]]:
        """Return the sessions that expired since the last call."""
        expired, self._expired = self._expired, []
        return expired

    def next_deadline(self) -> float | None:
        """Return the clock's time at which `expire` has something to do, or None."""
        return min((session.deadline for session in self if not session.busy), default=None)

    @property
    def device_bytes(self) -> int:
        """Bytes on the device: of each session and the reserve, and once what they share or have shared."""
        return self._shared.num_bytes + self.reserve.num_bytes + self.tally.device_bytes

    def leaving(self) -> list[Session[StateT]]:
        """Return the idle sessions in memory, in the order in which they leave it."""
        return [*self._dropping(Residency.HOST), *self._dropping(Residency.DEVICE)]

    def make_room(self, num_bytes: int, *, spared: Session[StateT] | None = None) -> bool:
        """Evict idle sessions but the one `spared` until `num_bytes` more fit the device's budget.

        Return False, without an eviction, if they cannot fit. Sessions stay open. Their tensors go to host memory if that has
        room, the least recently used first; else they are dropped and computed again when they are needed.
        """
        budget = self.limits.device_bytes
        excess = 0 if budget is None else self.device_bytes + num_bytes - budget
        if excess <= 0:
            return True
        # Copying to the host and back costs the same for each byte of any session.
        idle = (self._idle if self.limits.host_bytes else self._dropping)(Residency.DEVICE)
        idle = [session for session in idle if session is not spared]
        evictable = sum(session.state.device_bytes for session in idle)
        if excess > self.reserve.num_bytes + self._shared.kept_bytes + evictable:
            return False
        excess -= self.reserve.evict(excess)
        excess -= self._shared.evict(excess)  # what no session uses goes first
        for session in idle:
            if excess <= 0:
                break
            excess -= self._evict(session)
        return excess <= 0

    def evict_idle(self) -> None:
        """Evict what no session uses and every idle session: the last resort before an out-of-memory error."""
        self.reserve.evict()
        self._shared.evict()
        for session in self._idle(Residency.DEVICE):
            self._evict(session)

    def check_integrity(self) -> None:
        """Assert what must hold between any two calls."""
        self._shared.check_integrity()
        self.tally.check_integrity(self)
        assert self.tally.num_kept <= self.limits.max_sessions
        for session_id, session in self._sessions.items():
            assert session.session_id == session_id
            assert session_id not in self._ended
            assert session.opened_at <= session.last_used

    def _evict(self, session: Session[StateT]) -> int:
        """Move an idle session from the device to a lower tier; return the bytes that this freed on the device."""
        state = session.state
        before = state.device_bytes
        self.counts.evicted += 1
        if self.limits.host_bytes and self._host_room_for(before):
            state.to_host()
        else:
            state.to_record()
        self.tally.changed(session)
        return before - state.device_bytes

    def _idle(self, tier: Residency) -> list[Session[StateT]]:
        """Return the idle sessions of a tier, the least recently used first."""
        return [s for s in reversed(list(self)) if s.state.residency is tier and not s.busy]

    def _dropping(self, tier: Residency) -> list[Session[StateT]]:
        """Return idle sessions of a tier as they are dropped: one that costs twice as much may be idle for twice as long."""
        idle, now, cost = self._idle(tier), self._clock.monotonic(), self._cost
        if cost is None:
            return idle
        # Sorting is stable: equal ones stay in the order of their use.
        return sorted(idle, key=lambda session: (session.last_used - now) / cost(session.state))

    def _host_room_for(self, num_bytes: int) -> bool:
        if num_bytes > self.limits.host_bytes:
            return False
        excess = self.tally.host_bytes + num_bytes - self.limits.host_bytes
        for session in self._dropping(Residency.HOST) if excess > 0 else ():
            if excess <= 0:
                break
            before = session.state.host_bytes
            session.state.to_record()
            self.tally.changed(session)
            excess -= before - session.state.host_bytes
        return excess <= 0

    def _end(self, session: Session[StateT], error: type[SessionError]) -> None:
        self._shared.keep(session.state.shared)
        self._remove(session)
        self._ended.add(session.session_id, error, session.origin)
        if error is SessionExpired:
            self._expired.append(session)
            self.counts.expired += 1
        else:
            self.counts.closed += 1

    def _remove(self, session: Session[StateT]) -> None:
        session.state.release()
        del self._sessions[session.session_id]
        self.tally.remove(session)

    def _make_place(self, owner: str | None, spared: Session[StateT] | None = None) -> None:
        leaving = self.places.make(self, owner, spared)
        if leaving is None:
            return
        if not leaving.parks:
            self._end(leaving.session, SessionExpired)
            return
        self.counts.parked += 1
        self.places.park(leaving.session)
        self._shared.keep(leaving.session.state.shared)
        self.forget(leaving.session)
