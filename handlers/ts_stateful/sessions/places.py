"""The places of a session table: how many sessions there may be, of each owner too, and which one leaves for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Generic, NamedTuple, Protocol

from ts_stateful.clock import Clock
from ts_stateful.protocol.errors import Overloaded, QuotaExceeded, TooManySessions
from ts_stateful.sessions.session import Session, StateT
from ts_stateful.sessions.tally import Tally

__all__ = [
    "UNLIMITED_BYTES",
    "Leaving",
    "Limits",
    "Owners",
    "ParkedSessions",
    "Parking",
    "Places",
    "Reserve",
]

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


UNLIMITED_BYTES = 2**63
"""The `host_bytes` of a tier without a limit."""


class Limits(NamedTuple):
    """`max_sessions` open at once; seconds of idleness and of life; bytes on the device and in host memory."""

    max_sessions: int
    idle_s: float
    lifetime_s: float
    device_bytes: int | None = None
    host_bytes: int = 0

    @property
    def budget_bytes(self) -> float:
        """Bytes of the device and of host memory together."""
        device = self.device_bytes
        return float("inf") if device is None else device + self.host_bytes


class Owners(Protocol):
    """The owners of sessions; of the sessions of one, another has no place and loses none."""

    def owner_of(self, session_id: str) -> str | None:
        """Return the owner of a session by its id; None if it has none."""

    def max_sessions(self, owner: str | None) -> int | None:
        """Return the limit of an owner's sessions; None if it has none of its own."""

    def max_parked(self, owner: str | None) -> int:
        """Return the limit of an owner's parked sessions."""


class Parking(Generic[StateT]):
    """A store that sessions leave the table for, and come back from when they are used again; this one takes none."""

    def can_park(self, session: Session[StateT]) -> bool:
        """Return True if the store has all of an idle session."""
        return False

    def parked(self, session: Session[StateT]) -> None:
        """Note that a session has left the table."""


class Leaving(NamedTuple):
    """A session that has to leave the table: it `parks` in the store, or ends."""

    session: Session[Any]
    parks: bool


class Places(Generic[StateT]):
    """The rules of one table's places.

    A session that is kept between requests takes a place of `max_sessions`, and one of its owner's. Sessions of single requests
    have as many places of their own, so kept ones never shut them out. `parked` has the sessions that left,
    `tally` the sums over those that are there.
    """

    def __init__(self, max_sessions: int, owners: Owners, clock: Clock) -> None:
        self.owners = owners
        self.parking = Parking[StateT]()
        self.parked = ParkedSessions(clock)
        self.tally: Tally[StateT] = Tally()
        self._max_sessions = max_sessions
        self._clock = clock

    @property
    def most(self) -> int:
        """The sessions of both kinds that there may be."""
        return 2 * self._max_sessions

    def check_ephemeral(self) -> None:
        """Check that there is a place for the session of a single request.

        Raises:
            TooManySessions: there is none.
        """
        count = self.tally.num_ephemeral
        if count >= self._max_sessions:
            raise TooManySessions(
                f"{count} requests without a session are in progress, the limit (maxNumSequence); try again later",
                retry_after_s=1.0,
            )

    def make(
        self,
        sessions: Iterable[Session[StateT]],
        owner: str | None,
        spared: Session[StateT] | None,
    ) -> Leaving | None:
        """Return the session that has to leave for another one of this owner; None if there is a place.

        One that can be parked comes first, then one that `yields`.

        `sessions` are all of the table, the most recently used first. `spared` stays.

        Raises:
            QuotaExceeded, TooManySessions: there is no place, and none of the owner's sessions can leave.
        """
        most = self.owners.max_sessions(owner)
        has_place = self.tally.num_kept < self._max_sessions
        if has_place and (most is None or self.tally.num_kept_of(owner) < most):
            return None
        kept = [session for session in sessions if not session.ephemeral]
        own = [session for session in kept if session.owner == owner]
        has_room = self.parked.has_room(owner, self.owners.max_parked(owner))
        for session in reversed(own) if has_room else ():
            if session is not spared and not session.busy and self.parking.can_park(session):
                return Leaving(session, parks=True)
        yielding = [one for one in own if one.yields and not one.busy and one is not spared]
        if not yielding:
            raise self._refusal(kept, own, most)  # no local: its frame would keep all sessions
        return Leaving(yielding[-1], parks=False)

    def park(self, session: Session[StateT]) -> None:
        """Note that a session has left for the store."""
        self.parked.add(session)
        self.parking.parked(session)

    def _refusal(
        self, kept: list[Session[StateT]], own: list[Session[StateT]], most: int | None
    ) -> Overloaded:
        if most is not None and len(own) >= most:
            return QuotaExceeded(
                f"{len(own)} sessions of this principal are open, its quota; close one, or try again later",
                field="handler.quotas.openSessions",
                retry_after_s=self._first_end_s(own),
            )
        return TooManySessions(
            f"{len(kept)} sessions are open, the limit (maxNumSequence); close one, or try again later",
            retry_after_s=self._first_end_s(kept),
        )

    def _first_end_s(self, sessions: list[Session[StateT]]) -> float:
        """Return the seconds until the first of these sessions expires."""
        now = self._clock.monotonic()
        deadlines = [session.deadline for session in sessions if not session.busy]
        return max(1.0, round(min(deadlines, default=now) - now, 1))


class Reserve:
    """The owner of tensors that belong to no session in the table and leave the device first; this one has none."""

    @property
    def num_bytes(self) -> int:
        """Bytes on the device; all of them can be freed."""
        return 0

    def evict(self, num_bytes: int | None = None) -> int:
        """Drop tensors until `num_bytes` are free, or all; return the bytes that this freed."""
        return 0
