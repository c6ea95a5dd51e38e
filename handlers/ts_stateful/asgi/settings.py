"""The settings of the front's process, which its supervisor writes."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from ts_stateful.asgi.source import ModelSource

__all__ = ["ADMIN_TOKEN", "FrontSettings", "Tls"]


ADMIN_TOKEN = "TS_STATEFUL_ADMIN_TOKEN"
"""The variable with the token of the port of administration."""


class Tls(Struct, frozen=True, kw_only=True):
    """PEM files of the public ports; with `client_ca`, clients need a certificate that it has signed."""

    certificate: str
    key: str
    client_ca: str | None = None


class FrontSettings(Struct, frozen=True, kw_only=True):
    """The models and the ports of a front. The `fds` are listening sockets that the process inherits."""

    models: tuple[ModelSource, ...]
    http_fd: int
    management_fd: int
    metrics_fd: int
    admin_fd: int
    admin_port_fd: int | None = None
    host: str
    grpc_port: int
    max_body_bytes: int = 28_000_000
    tls: Tls | None = None

    def save(self, path: Path) -> None:
        """Write the settings to a file that only this user can read."""
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: Path) -> FrontSettings:
        """Read a file that `save` wrote."""
        return msgspec.json.decode(path.read_bytes(), type=cls)
