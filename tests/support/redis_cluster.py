"""A Redis Cluster of loopback for tests: three servers with a replica each."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import redis

from tests.support.ports import free_port

__all__ = ["NO_CLUSTER", "RedisCluster", "cluster_binary", "redis_cluster"]

NO_CLUSTER = "no redis-server 7 and redis-cli: apt-get install redis-server"
_NUM_SERVERS = 6
_NODE_TIMEOUT_MS = 3000  # of a server, until another one takes its place
_DEADLINE_S = 120.0


def cluster_binary() -> str | None:
    """Find a server of version 7 or newer, which has `--cluster-port`, beside redis-cli."""
    binary = shutil.which("redis-server", path=f"/usr/bin:/usr/local/bin:{os.defpath}")
    if binary is None or not Path(binary).with_name("redis-cli").exists():
        return None
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"v=(\d+)", done.stdout)
    return binary if found is not None and int(found[1]) >= 7 else None


class RedisCluster:
    """The servers by their ports."""

    def __init__(self, binary: str, folder: Path) -> None:
        self._commands = {
            port: _command(binary, port, folder)
            for port in (free_port() for _ in range(_NUM_SERVERS))
        }
        self._folder = folder
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def addresses(self) -> list[str]:
        """The addresses of all servers."""
        return [f"127.0.0.1:{port}" for port in self._commands]

    @property
    def url(self) -> str:
        """The URL of a store in the cluster."""
        return f"redis://127.0.0.1:{next(iter(self._commands))}/0?cluster=1"

    def client(self, port: int) -> redis.Redis:
        """Return a client of one server."""
        return redis.Redis(port=port, socket_timeout=_DEADLINE_S)

    def is_ready(self) -> bool:
        """Return True if every server knows an owner of each slot, and has a replica or is one with all data."""
        for port in self._processes:
            with self.client(port) as client:
                info = client.info("replication")
                is_replica = info["role"] == "slave"
                is_linked = (
                    info["master_link_status"] == "up" if is_replica else info["connected_slaves"]
                )
                if not is_linked or client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                    return False
        return True

    def owner(self, key: str) -> int:
        """Return the port of the server that owns a key's slot, as another server sees it."""
        port = next(iter(self.living))
        with self.client(port) as client:
            slot = int(client.execute_command("CLUSTER KEYSLOT", key))
            for first, last, owner, *_ in client.execute_command("CLUSTER SLOTS"):
                if first <= slot <= last:
                    return int(owner[1])
        raise AssertionError(f"no server owns the slot {slot}")

    def id_of(self, port: int) -> str:
        """Return a server's id in the cluster."""
        with self.client(port) as client:
            found = client.execute_command("CLUSTER MYID")
            return str(found.decode() if isinstance(found, bytes) else found)

    @property
    def living(self) -> list[int]:
        """The ports of the servers that run."""
        return [port for port, process in self._processes.items() if process.poll() is None]

    def start(self, *ports: int) -> None:
        """Start these servers, or all; return when they answer. One that was killed comes back as a replica."""
        for port in ports or self._commands:
            self._processes[port] = subprocess.Popen(
                self._commands[port], cwd=self._folder, stdout=subprocess.DEVNULL
            )
        _until(lambda: all(map(self._answers, self._processes)))

    def kill(self, *ports: int) -> None:
        """Kill these servers, or all."""
        for port in ports or self._processes:
            self._processes[port].kill()
            self._processes[port].wait()

    def _answers(self, port: int) -> bool:
        with self.client(port) as client, contextlib.suppress(redis.ConnectionError):
            return bool(client.ping())
        return False


@contextlib.contextmanager
def redis_cluster(binary: str) -> Iterator[RedisCluster]:
    """Start it. Yield it when every server answers for the whole cluster."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = RedisCluster(binary, Path(folder))
        try:
            cluster.start()
            tool = str(Path(binary).with_name("redis-cli"))
            options = ["--cluster-replicas", "1", "--cluster-yes"]
            subprocess.run(
                [tool, "--cluster", "create", *cluster.addresses, *options],
                capture_output=True,
                check=True,
                timeout=_DEADLINE_S,
            )
            _until(cluster.is_ready)
            yield cluster
        finally:
            cluster.kill()


def _command(binary: str, port: int, folder: Path) -> list[str]:
    return [
        *(binary, "--port", str(port), "--bind", "127.0.0.1", "--save", ""),
        *("--cluster-enabled", "yes", "--cluster-port", str(free_port())),
        *("--cluster-config-file", str(folder / f"{port}.conf")),
        *("--cluster-node-timeout", str(_NODE_TIMEOUT_MS), "--repl-diskless-sync-delay", "0"),
    ]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the cluster does not come up"
        time.sleep(0.05)
