"""The arguments of the application for Ray Serve, and the settings that its replicas need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ts_stateful.asgi.request_headers import with_underscores
from ts_stateful.config.schema import Config, ConfigError
from ts_stateful.frontend.parsing.headers import HeaderNames

__all__ = ["ROUTED_BY", "RayArguments", "check_replica"]

ROUTED_BY = "RAY_SERVE_SESSION_ID_HEADER_KEY"
"""The variable that names the header by which Ray Serve's proxies route."""
_Number = Annotated[int, Meta(ge=1)]


class RayArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `args` of an application in Ray Serve's configuration, or `key=value` after `serve run`.

    `model` is an archive, a folder or a hub id that every node can read, `name` its name in URLs, and `config` the path of a
    `model-config.yaml` that replaces its own. There are enough replicas if none has more open sessions or running turns than
    `sessions_per_replica` and `turns_per_replica`, between `min_replicas` and `max_replicas`.
    """

    model: str
    name: str | None = None
    config: str | None = None
    min_replicas: _Number = 1
    max_replicas: _Number = 1
    sessions_per_replica: _Number = 192
    turns_per_replica: _Number = 32

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RayArguments:
        """Read the arguments; numbers may be texts.

        Raises:
            ConfigError: one is unknown, missing or out of range.
        """
        try:
            arguments = msgspec.convert(dict(given), cls, strict=False)
        except msgspec.ValidationError as error:
            names = ", ".join(cls.__struct_fields__)
            raise ConfigError(
                f"arguments of ts_stateful.asgi:app: {error}; they are {names}"
            ) from None
        if arguments.min_replicas > arguments.max_replicas:
            raise ConfigError(
                f"arguments of ts_stateful.asgi:app: min_replicas is {arguments.min_replicas}, more than max_replicas,"
                f" {arguments.max_replicas}; raise max_replicas"
            )
        return arguments


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
    if config.store is not None and config.store.url is None:
        raise ConfigError(
            "handler.store.url is not set, so sessions would be lost with their replica; name a store that all nodes reach"
        )
