"""HAProxy with the configuration in deploy/haproxy, for as long as a test needs it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.ports import free_ports
from ts_stateful.serving.ports import HOST, Ports

__all__ = ["CONFIG", "NO_HAPROXY", "Proxy", "check", "haproxy", "haproxy_binary"]

NO_HAPROXY = "no haproxy: apt-get install haproxy"
CONFIG = Path(__file__).resolve().parent.parent.parent / "deploy" / "haproxy" / "haproxy.cfg"


class Proxy(NamedTuple):
    """Where it listens, as `ts_stateful.client.connect` takes it, and what it has said."""

    http_url: str
    grpc_url: str
    log: Path

    def uses(self, number: int) -> bool:
        """Whether a node gets requests: it says so each time that a node goes or is back."""
        told = self._told(rf"http_nodes/node{number} is (UP|DOWN)")
        return not told or told[-1] == "UP"

    def has_lost_one(self) -> bool:
        """Whether it ever took a node for lost."""
        return bool(self._told("is DOWN"))

    def _told(self, pattern: str) -> list[str]:
        return re.findall(pattern, self.log.read_text())


def haproxy_binary() -> str | None:
    """The program: on the path, or where Debian puts it, which is not on everybody's."""
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")


def check(binary: str, config: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """What it says of a configuration."""
    return subprocess.run(
        [binary, "-c", "-f", str(config)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@contextlib.contextmanager
def haproxy(
    binary: str, nodes: Sequence[Ports], log: Path, config: Path = CONFIG, **environ: str
) -> Iterator[Proxy]:
    """Start it in front of two nodes; with `TS_CERT` it speaks TLS. Yield it when it listens."""
    mine = free_ports()
    environ |= {"TS_HTTP": f"{HOST}:{mine.http}", "TS_GRPC": f"{HOST}:{mine.grpc}"}
    for number, ports in enumerate(nodes, start=1):
        environ[f"TS_NODE_{number}"] = f"{HOST}:{ports.http}"
        environ[f"TS_NODE_{number}_GRPC"] = f"{HOST}:{ports.grpc}"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w") as output,
        subprocess.Popen(
            [binary, "-db", "-f", str(config)],
            env={**os.environ, **environ},
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            _wait_listening(process, mine.http)
            tls = "s" if "TS_CERT" in environ else ""
            yield Proxy(f"http{tls}://{HOST}:{mine.http}", f"grpc{tls}://{HOST}:{mine.grpc}", log)
        finally:
            process.kill()


def _wait_listening(process: subprocess.Popen[bytes], port: int) -> None:
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port)):
            return
        time.sleep(0.02)
    raise AssertionError(f"haproxy ended with status {process.returncode}")
