"""A Ray cluster of two nodes on this machine, driven by its REST API, so that tests import no Ray."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.e2e.speak import HEADER, eventually
from tests.support.ports import free_port
from ts_stateful.process.drain import wait_ended

__all__ = ["NO_RAY", "RayCluster", "has_ray", "ray_cluster"]

NO_RAY = "no Ray: pip install -c constraints.txt -e '.[ray]'"
_HANDLERS = Path(__file__).resolve().parents[2] / "handlers"
_STORE_BYTES = 80_000_000  # of each node's object store, which the application does not use
_WAIT_S = 60.0


def has_ray() -> bool:
    """Return True if Ray Serve is installed."""
    return importlib.util.find_spec("ray") is not None


class RayCluster:
    """Two nodes of one CPU each, so that each has one replica at most."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.http_port, self._dashboard = free_port(), free_port()
        self._folder, self._log = folder, log
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{self._dashboard}", timeout=_WAIT_S, trust_env=False
        )

    @property
    def http_url(self) -> str:
        """The URL at which the proxies of both nodes listen."""
        return f"http://127.0.0.1:{self.http_port}"

    def start(self) -> None:
        """Start the processes; they answer some seconds later."""
        port = free_port()
        head = ["--head", "--port", str(port), "--dashboard-host", "127.0.0.1"]
        head += ["--dashboard-port", str(self._dashboard), "--include-dashboard", "true"]
        head += ["--ray-client-server-port", str(free_port()), "--temp-dir", str(self._folder)]
        self._nodes.append(self._node(*head))
        eventually(lambda: _answers(lambda: self._http.get("/api/version").is_success))
        self._nodes.append(self._node("--address", f"127.0.0.1:{port}"))
        eventually(lambda: _answers(lambda: self._num_nodes() == 2))

    def deploy(self, application: Mapping[str, Any]) -> None:
        """Deploy an application as `serve deploy` does, in place of the earlier one; it is ready later."""
        document = {
            "proxy_location": "EveryNode",
            "http_options": {"host": "127.0.0.1", "port": self.http_port},
            "applications": [application],
        }
        self._http.put("/api/serve/applications/", json=document).raise_for_status()

    def application(self) -> dict[str, Any]:
        """Return the state of the application."""
        found = self._http.get("/api/serve/applications/").raise_for_status().json()
        (application,) = found["applications"].values()
        return dict(application)

    def replicas(self) -> dict[str, int]:
        """Return the process ids of the running replicas by their names."""
        deployments = self.application()["deployments"].values()
        found = [one for deployment in deployments for one in deployment["replicas"]]
        return {one["replica_id"]: one["pid"] for one in found if one["state"] == "RUNNING"}

    def stop(self) -> None:
        """End all processes, by force where they do not."""
        self._http.close()
        for node in reversed(self._nodes):
            processes = psutil.Process(node.pid).children(recursive=True)
            node.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(_WAIT_S)
            node.kill()
            node.wait()
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            wait_ended(processes, _WAIT_S)

    def _node(self, *options: str) -> subprocess.Popen[bytes]:
        # The program beside this Python may be another environment's.
        command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start"]
        command += [*options, "--block", "--disable-usage-stats", "--node-ip-address", "127.0.0.1"]
        command += ["--num-cpus", "1", "--object-store-memory", str(_STORE_BYTES)]
        command += ["--min-worker-port", "0", "--max-worker-port", "0"]
        for name in ("--dashboard-agent-listen-port", "--metrics-export-port"):
            command += [name, str(free_port())]
        environ = {
            **os.environ,
            "PYTHONPATH": str(_HANDLERS),
            "RAY_SERVE_SESSION_ID_HEADER_KEY": HEADER,
            "RAY_AUTH_MODE": "disabled",  # it is on for users who have a token
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # of `stop`, when nothing is served any more
        }
        with self._log.open("ab") as log:
            return subprocess.Popen(command, env=environ, stdout=log, stderr=log)

    def _num_nodes(self) -> int:
        found = self._http.get("/nodes?view=summary").raise_for_status().json()
        return sum(one["raylet"]["state"] == "ALIVE" for one in found["data"]["summary"])


def _answers(condition: Callable[[], bool]) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return condition()
    return False


@contextlib.contextmanager
def ray_cluster(log: Path) -> Iterator[RayCluster]:
    """Start a cluster, whose output goes to `log`, and stop it."""
    # Short, because it has Unix sockets.
    folder = Path(tempfile.mkdtemp(prefix="ts-ray-"))
    cluster = RayCluster(folder, log)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
