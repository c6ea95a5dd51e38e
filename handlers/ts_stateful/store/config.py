"""What a configuration may say of the store.

Owns names, defaults and ranges; knows no backend. Secrets are named here, never held: keys come from environment variables,
credentials from the URL or from what the backend's client finds by itself.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

__all__ = ["StoreConfig"]


class StoreConfig(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """`handler.store`: where sessions are written down, and what happens when that fails."""

    # file:///folder, redis://, rediss://, s3://bucket/prefix; None: sessions live in the engine alone
    url: str | None = None
    # required: a turn that cannot be written fails; best_effort: it is answered, and the session can be lost with its engine
    policy: Literal["required", "best_effort"] = "required"
    fsync: bool = False  # files survive a loss of power, not only of the process
    timeout_sec: Annotated[float, Meta(gt=0)] = 5.0  # for one call, attempts included
    encryption_key_env: str | None = None  # the environment variable with the keys; None: plain
