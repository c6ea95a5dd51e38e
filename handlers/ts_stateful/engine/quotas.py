"""The quotas of principals in one engine: open sessions, turns in flight, tokens a minute.

Sessions and turns are counted in the table itself, so no count can be wrong after a failure. Each engine counts on its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from lru import LRU

from ts_stateful.clock import Clock
from ts_stateful.config.limits import Quota
from ts_stateful.config.schema import Config
from ts_stateful.protocol.errors import QuotaExceeded
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.tenants import tenant_digits, tenant_of
from ts_stateful.sessions.session import Session

__all__ = ["Quotas", "TokenBucket"]

_MINUTE_S = 60.0
_ROUNDING = 1e-6  # of a token
_BUCKETS = 100_000  # the principal that was active longest ago begins again with a full one
_RETRY_AFTER_S = 1.0
_MAX_PARKED = 10_000


class Quotas:
    """Implements `Owners`: an owner is the tenant's part of a principal's internal ids, None without principals.

    `max_sessions` is the engine's share of the configuration's.
    """

    def __init__(self, config: Config, max_sessions: int, clock: Clock) -> None:
        settings = config.engine.quotas
        self._has_principals = config.engine.auth != "none"
        self._others = settings.of(None)
        self._named = {tenant_digits(name): settings.of(name) for name in settings.principals}
        self._share = Fraction(
            min(max_sessions, config.frontend.max_sessions), config.frontend.max_sessions
        )
        self._clock = clock
        self._buckets: LRU[str | None, TokenBucket] = LRU(_BUCKETS)
        quotas = (self._others, *self._named.values())
        self._counts_tokens = any(quota.tokens_per_minute for quota in quotas)
        self._counts_turns = any(quota.turns_in_flight is not None for quota in quotas)

    def owner_of(self, session_id: str) -> str | None:
        """See `Owners`. Without principals an id is what the client made it, and has no owner."""
        return tenant_of(session_id) if self._has_principals else None

    def max_sessions(self, owner: str | None) -> int | None:
        """See `Owners`. Of several engines each has its share, rounded up."""
        most = self._of(owner).open_sessions
        return None if most is None else math.ceil(most * self._share)

    def max_parked(self, owner: str | None) -> int:
        """See `Owners`."""
        return self._of(owner).parked_sessions or _MAX_PARKED

    def check_turn(self, message: Submit, sessions: Iterable[Session[Any]]) -> None:
        """Check that the owner of a request's session may begin a turn; `sessions` are all of the table.

        A request that an engine that died had admitted is not checked again.

        Raises:
            QuotaExceeded: too many are in flight, or the owner's tokens are used up.
        """
        if message.is_retry or not (self._counts_turns or self._counts_tokens):
            return
        owner = self.owner_of(message.command.session_id or "")
        most = self._of(owner).turns_in_flight
        if most is not None:
            count = sum(len(session.work) for session in sessions if session.owner == owner)
            if count >= most:
                raise QuotaExceeded(
                    f"{count} turns of this principal are in flight, its quota; wait for an answer first",
                    field="handler.quotas.turnsInFlight",
                    retry_after_s=_RETRY_AFTER_S,
                )
        bucket = self._bucket(owner)
        wait_s = 0.0 if bucket is None else bucket.wait_s()
        if wait_s > 0:
            raise QuotaExceeded(
                f"this principal has used up its {self._of(owner).tokens_per_minute} tokens a minute; try again later",
                field="handler.quotas.tokensPerMinute",
                retry_after_s=math.ceil(wait_s * 10) / 10,
            )

    def spend(self, owner: str | None, num_tokens: int) -> None:
        """Count tokens that were added to a session of this owner."""
        if self._counts_tokens and (bucket := self._bucket(owner)) is not None:
            bucket.take(num_tokens)

    def _of(self, owner: str | None) -> Quota:
        return self._others if owner is None else self._named.get(owner, self._others)

    def _bucket(self, owner: str | None) -> TokenBucket | None:
        bucket = self._buckets.get(owner)
        if bucket is None and (per_minute := self._of(owner).tokens_per_minute) is not None:
            bucket = self._buckets[owner] = TokenBucket(per_minute, self._clock)
        return bucket


class TokenBucket:
    """Holds up to `per_minute` tokens, at first that many, and gets them back at this rate.

    Tokens are taken when they were computed, so there may be fewer than none.
    """

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at = clock.monotonic()

    def take(self, num_tokens: int) -> None:
        """Take tokens that were computed."""
        self._refill()
        self._level -= num_tokens

    def wait_s(self) -> float:
        """Return the seconds until there is a token; 0 if there is one."""
        self._refill()
        missing = 1.0 - self._level
        return missing * _MINUTE_S / self._per_minute if missing > _ROUNDING else 0.0

    def _refill(self) -> None:
        now = self._clock.monotonic()
        gained = (now - self._at) * self._per_minute / _MINUTE_S
        self._level, self._at = min(float(self._per_minute), self._level + gained), now
