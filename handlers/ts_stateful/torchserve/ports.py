"""Where a TorchServe listens.

Owns the numbers and how config.properties spells them; every address is loopback. Knows nothing of processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from dataclasses import dataclass

__all__ = ["HOST", "Ports"]

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Ports:
    """Where TorchServe listens on the loopback address; 0 means a free one."""

    http: int = 0
    management: int = 0
    metrics: int = 0
    grpc: int = 0
    grpc_management: int = 0

    def filled(self) -> Ports:
        """The same with a free port for every 0. All are held at once, so no two get the same."""
        with contextlib.ExitStack() as held:
            free = {}
            for field, port in dataclasses.asdict(self).items():
                if port == 0:
                    probe = held.enter_context(socket.socket())
                    probe.bind((HOST, 0))
                    free[field] = probe.getsockname()[1]
        return dataclasses.replace(self, **free)

    def taken(self) -> list[int]:
        """Those that something listens on already."""
        return [port for port in dataclasses.astuple(self) if port and not _is_free(port)]

    def as_properties(self) -> str:
        """The settings of config.properties that name these ports."""
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
        # As servers do: not the recently closed.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
