"""The ports of a TorchServe on the loopback address."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from dataclasses import dataclass

__all__ = ["HOST", "Ports", "in_url"]

HOST = "127.0.0.1"


def in_url(host: str) -> str:
    """Return a name or address as it stands before the port in a URL: IPv6 has brackets there."""
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True)
class Ports:
    """The ports by service; 0 means any free port."""

    http: int = 0
    management: int = 0
    metrics: int = 0
    grpc: int = 0
    grpc_management: int = 0

    def filled(self) -> Ports:
        """Replace every 0 by a free port. All are held at once, so they differ."""
        with contextlib.ExitStack() as held:
            free = {}
            for field, port in dataclasses.asdict(self).items():
                if port == 0:
                    probe = held.enter_context(socket.socket())
                    probe.bind((HOST, 0))
                    free[field] = probe.getsockname()[1]
        return dataclasses.replace(self, **free)

    def taken(self) -> list[int]:
        """Return the ports that are in use."""
        return [port for port in dataclasses.astuple(self) if port and not _is_free(port)]

    def as_properties(self) -> str:
        """Return the lines of config.properties for these ports."""
        return (
            f"inference_address=http://{HOST}:{self.http}\n"
            f"management_address=http://{HOST}:{self.management}\n"
            f"metrics_address=http://{HOST}:{self.metrics}\n"
            f"grpc_inference_address={HOST}\n"
            f"grpc_management_address={HOST}\n"
            f"grpc_inference_port={self.grpc}\n"
            f"grpc_management_port={self.grpc_management}\n"
        )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Like servers, which can bind a port that was closed recently.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
