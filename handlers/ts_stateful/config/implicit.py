"""The settings of conversations without a session header."""

from __future__ import annotations

from msgspec import Struct

from ts_stateful.config.ranges import Count, Duration

__all__ = ["ImplicitConfig"]


class ImplicitConfig(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """`handler.implicitSessions`: conversations of clients that send all messages each time, and no session header."""

    idle_sec: Duration = 600.0
    """Seconds that one waits for its next request. 0: none is kept."""
    max_bytes: Count | None = None
    """Bytes of their KV states, which leave before any other session's. Unset: a quarter of the device's bytes, else 1 GB."""
