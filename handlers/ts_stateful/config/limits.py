"""Bounds: of requests, of what a principal uses, and of conversations without a session header."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ts_stateful.config.ranges import Count, Duration, Settings

__all__ = ["ImplicitConfig", "LimitsConfig", "Quota", "QuotasConfig"]


class LimitsConfig(Settings, frozen=True, kw_only=True):
    """`handler.limits`: bounds of requests, checked before a request is parsed."""

    max_json_bytes: Count = 1_000_000
    """Bytes of the JSON of a request beside the data of its images, or of a raw input of format `text`."""
    max_json_values: Count = 100_000
    """Values in this JSON, objects and arrays included, or numbers in this text."""
    max_json_depth: Annotated[int, Meta(ge=8, le=128)] = 64
    """Levels of objects and arrays in each other."""
    max_in_flight_bytes: Count = 200_000_000
    """Bytes of all requests in flight in a worker. A request that is alone there may have more."""


class Quota(Settings, frozen=True, kw_only=True):
    """The quotas of one principal; None is no bound."""

    open_sessions: Count | None = None
    """Sessions of one principal in memory. Beyond them `handler.onFull` decides."""
    parked_sessions: Count | None = None
    """Sessions of one principal that have left the memory of an engine for the store. Unset: 10000."""
    turns_in_flight: Count | None = None
    """Turns, openings or steps of one principal that wait or run in an engine."""
    queued_bytes: Count | None = None
    """Bytes of one principal's requests in flight in a worker. A request that is its only one may have more."""
    tokens_per_minute: Count | None = None
    """Tokens that one principal's turns add to sessions, in prompts and replies. As many may come at once."""


class QuotasConfig(Quota, frozen=True, kw_only=True):
    """`handler.quotas`: the most that one principal may use at a time. Without principals all clients are one."""

    principals: dict[str, Quota] = {}
    """Other quotas for principals by name. A quota that is left out there is the one of all."""

    def of(self, principal: str | None) -> Quota:
        """Return the quotas of a principal; None for clients without one."""
        own = self.principals.get(principal, Quota()) if principal is not None else Quota()
        names = Quota.__struct_fields__
        return Quota(**{name: getattr(own, name) or getattr(self, name) for name in names})


class ImplicitConfig(Settings, frozen=True, kw_only=True):
    """`handler.implicitSessions`: conversations of clients that send all messages each time, and no session header."""

    idle_sec: Duration = 600.0
    """Seconds that one waits for its next request. 0: none is kept."""
    max_bytes: Count | None = None
    """Bytes of their KV states, which leave before any other session's. Unset: a quarter of the device's bytes, else 1 GB."""
