"""The settings of the store of sessions."""

from __future__ import annotations

import re
from typing import Literal

from ts_stateful.config.ranges import Count as _Count
from ts_stateful.config.ranges import Positive as _Positive
from ts_stateful.config.ranges import Settings, has_sound_host

__all__ = ["URL_FORMS", "StoreConfig"]

URL_FORMS = "file:///folder, redis://host:port/db, rediss://host:port/db, s3://bucket/prefix, none"
_URL = re.compile(r"none$|file:///+[^/]|rediss?://|s3://[^/]")


class StoreConfig(Settings, frozen=True, kw_only=True):
    """`handler.store`: the place where sessions are written, and the reaction to failures.

    Keys come from environment variables, credentials from these, from the URL or from the backend's client.
    """

    url: str | None = None
    """`file:///folder`, `redis://host`, `s3://bucket/prefix`, or `none`. Unset: a folder below the temporary one."""
    policy: Literal["required", "best_effort"] = "required"
    """`required`: a turn that cannot be written fails. `best_effort`: it is answered, and can be lost with its engine."""
    content: Literal["all", "text", "none"] = "all"
    """The part of a session that is written. `text`: no images. `none`: neither images nor text."""
    fsync: bool = False
    """Files survive a loss of power, not only of the process."""
    timeout_sec: _Positive = 5.0
    """Seconds for one call of the store, attempts included."""
    password_env: str | None = None
    """The environment variable with the password of Redis. Unset: the URL has it, or there is none."""
    encryption_key_env: str | None = None
    """The environment variable with the keys. Unset: values are not encrypted."""
    kv_spill: bool = False
    """Write KV states that do not fit into memory to the store, and read them back instead of computing them again."""
    kv_spill_bytes: _Count = 16_000_000_000
    """Bytes of these KV states, for the sessions of one engine."""

    def __post_init__(self) -> None:
        url = self.url or "none"
        hosts = url.partition("://")[2].partition("/")[0].rpartition("@")[2].split(",")  # sentinels
        if not (_URL.match(url) and all(has_sound_host(f"//{host}") for host in hosts)):
            # The store judges the rest.
            raise ValueError(f"`url` has to be one of {URL_FORMS}")

    @property
    def spill_bytes(self) -> int:
        """Return the largest number of bytes of KV states in the store."""
        return self.kv_spill_bytes if self.kv_spill else 0
