"""The conditions under which a session stays on its replica, and outlives it."""

from __future__ import annotations

from collections.abc import Mapping

from ts_stateful.asgi.request_headers import with_underscores
from ts_stateful.config.schema import Config, ConfigError
from ts_stateful.frontend.parsing.headers import HeaderNames

__all__ = ["ROUTED_BY", "check_replica"]

ROUTED_BY = "RAY_SERVE_SESSION_ID_HEADER_KEY"
"""The variable that names the header by which Ray Serve's proxies route."""


def check_replica(config: Config, names: HeaderNames, environ: Mapping[str, str]) -> None:
    """Check that requests of a session find its replica, and other replicas find the session.

    Raises:
        ConfigError: proxies read another header, or the store is in the replica's own folder.
    """
    header = environ.get(ROUTED_BY, "")
    if with_underscores(header.lower()) not in map(with_underscores, names.ids):
        raise ConfigError(
            f"{ROUTED_BY} is {header or 'not set'}, so Ray Serve would not route by session;"
            f" set it to {names.id} before `ray start`, on every node"
        )
    store = config.store
    if store is not None and store.url is None:
        raise ConfigError(
            "handler.store.url is not set, so sessions would be lost with their replica; name a store that all nodes reach"
        )
