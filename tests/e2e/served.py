"""The front without TorchServe under `ts-stateful serve`, in a process tree of its own that a test may kill."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.speak import DEADLINE_S, eventually
from ts_stateful.asgi.process import FRONT
from ts_stateful.process.drain import descendants, wait_ended
from ts_stateful.process.names import name_of
from ts_stateful.serving.local import get_json
from ts_stateful.serving.ports import Ports
from ts_stateful.serving.server import LocalServer, ServerSettings

__all__ = ["Served"]


class Served(LocalServer):
    """One node: the command, its front and its engines."""

    def __init__(self, archive: Path, ports: Ports, log_file: Path) -> None:
        super().__init__(ServerSettings(ports=ports, log_file=log_file), None)
        self._archive = archive
        self._process: subprocess.Popen[bytes] | None = None
        self._temporary = ""

    def start(self) -> None:
        """See `LocalServer`."""
        command = [sys.executable, "-m", "ts_stateful.cli", "serve", str(self._archive)]
        for name in ("http", "grpc", "management", "metrics"):
            command += [f"--{name}-port", str(getattr(self.ports, name))]
        assert self.log_file is not None
        self._temporary = tempfile.mkdtemp(prefix="ts-")  # short, for the names of sockets
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                ["env", f"TMPDIR={self._temporary}", *command], stdout=log, stderr=log
            )
        eventually(lambda: self.is_ready() or self._has_exited())
        assert not self._has_exited(), self.log_file.read_text()
        self._home = next(Path(self._temporary).glob("ts-*/front.json")).parent

    def _has_exited(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def wait(self) -> None:
        """See `LocalServer`."""
        assert self._process is not None
        self._process.wait()

    def stop(self) -> None:
        """See `LocalServer`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(DEADLINE_S)
        self._forget()

    def kill(self) -> None:
        """Kill every process at once, as when a machine is lost."""
        assert self._process is not None
        self._process.kill()
        self._kill(self.processes())
        self._process.wait(DEADLINE_S)
        self._forget()

    def kill_front_and_engines(self) -> None:
        """Kill these at once. The supervisor starts another front, and that another engine."""
        self._kill(self.processes())

    def processes(self) -> list[psutil.Process]:
        """Find the front, the engines and what they have started."""
        return list(descendants("TMPDIR", str(self._home / "tmp"))) if self._home else []

    def describe(self) -> dict[str, Any]:
        """See `LocalServer`; the worker is the front."""
        (front,) = [one for one in self.processes() if name_of(one.pid) == FRONT]
        (description,) = get_json(self.ports.management, f"/models/{self.name}")
        return {**description, "workers": [{"pid": front.pid}]}

    def is_ready(self) -> bool:
        """See `LocalServer`."""
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            return bool(get_json(self.ports.management, "/readyz")["status"] == "ready")
        return False

    def _kill(self, processes: list[psutil.Process]) -> None:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        wait_ended(processes, DEADLINE_S)

    def _forget(self) -> None:
        self._process = self._home = None
        shutil.rmtree(self._temporary, ignore_errors=True)
