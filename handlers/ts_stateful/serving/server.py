"""A server on this machine with a folder of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO, TypeVar

import psutil

from ts_stateful.process.drain import engines_in
from ts_stateful.process.load_progress import read_load_step
from ts_stateful.process.spec import engine_files, keep_logs
from ts_stateful.serving.local import ServerFailed
from ts_stateful.serving.ports import HOST, Ports
from ts_stateful.serving.server_log import ServerLog

__all__ = ["LocalServer"]

_Server = TypeVar("_Server", bound="LocalServer")
_TAIL_LINES = 60


class LocalServer(ABC):
    """A server as a context manager: it always stops at the end of the block.

    Its output goes to `log_file` and `echo`, where they are given. Without a file, only the tail is kept, in memory.
    """

    def __init__(
        self,
        name: str,
        ports: Ports,
        log_file: Path | None,
        echo: TextIO | None,
        environ: Mapping[str, str],
    ) -> None:
        self.name = name
        self.ports = ports.filled()
        self.log_file = log_file
        self._log = ServerLog(log_file, echo, {**os.environ, **environ})
        self._home: Path | None = None
        self._lock = -1  # of the folder, see `make_home`

    @property
    def http_url(self) -> str:
        """The URL of the inference API."""
        return f"http://{HOST}:{self.ports.http}"

    @property
    def management_url(self) -> str:
        """The URL of the management API."""
        return f"http://{HOST}:{self.ports.management}"

    @property
    def metrics_url(self) -> str:
        """The URL of the metrics, in Prometheus's format under /metrics."""
        return f"http://{HOST}:{self.ports.metrics}"

    @property
    def grpc_url(self) -> str:
        """The URL of the inference API by gRPC, for `ts_stateful.client.connect`."""
        return f"grpc://{HOST}:{self.ports.grpc}"

    @property
    def admin_urls(self) -> list[str]:
        """The URLs of the administration, for `ts-stateful --admin`; TorchServe has none."""
        return []

    def __enter__(self: _Server) -> _Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start the server and return when all models answer.

        Raises:
            ServerFailed: a port is in use, a model does not load, or it took too long.
        """

    @abstractmethod
    def wait(self) -> None:
        """Block until the server exits by itself; interrupt it with KeyboardInterrupt."""

    @abstractmethod
    def stop(self) -> None:
        """Finish the running turns and stop all processes; idempotent, at any time."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the management API's description of the first model; `workers` have the processes that take requests.

        Raises:
            OSError: it does not answer.
            ValueError: the answer is not a description of one model.
        """

    @abstractmethod
    def is_ready(self) -> bool:
        """Return True if every model answers."""

    def show_step(self) -> None:
        """Show the step at which an engine loads its model; call this often while the server starts."""
        assert self._home is not None
        found = ((path, read_load_step(path)) for path in engine_files(self._home, "loading"))
        steps = [(path.stem, step) for path, step in found if step is not None]
        if not steps:
            self._log.status("starting the server")
            return
        engine, step = steps[0]
        self._log.status(f"{engine}: {step.in_words()}" if len(steps) > 1 else step.in_words())

    def remove_home(self, state_dir: Path | None) -> None:
        """Remove the server's folder; its logs stay in the folder of what outlives the server."""
        if self._home is not None:
            if state_dir is not None:
                keep_logs(self._home, state_dir)
            shutil.rmtree(self._home, ignore_errors=True)
            os.close(self._lock)
            self._home = None

    def engines(self) -> list[psutil.Process]:
        """Find the engine processes of this server."""
        return [] if self._home is None else engines_in(self._home / "tmp")

    def failure(self, what: str, state_dir: Path | None) -> ServerFailed:
        """Return the error of a server that does not start: the reason in a line, and where its logs stay.

        What wrote down its reason did so in a file `*.reason`; else the error has `what` failed, and the end of the log.
        """
        assert self._home is not None
        self._log.status("")
        folder = state_dir or Path(tempfile.mkdtemp(prefix="ts-stateful-failed-"))
        logs = keep_logs(self._home, folder)
        with contextlib.suppress(OSError):  # the disk may be full, which may be the reason
            (logs / "server.log").write_text(str(self._log), encoding="utf-8")
        for path in [*self._home.glob("*.reason"), *engine_files(self._home, "reason")]:
            with contextlib.suppress(OSError):
                reason = path.read_text(encoding="utf-8").rstrip(".")
                return ServerFailed(f"{reason}; the logs are in {logs}")
        return ServerFailed(f"{what}; the logs, in {logs}, end with:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """Return the last lines of the server's output and of its engines' logs."""
        parts = [str(self._log)]
        for path in engine_files(self._home, "log") if self._home is not None else ():
            with contextlib.suppress(OSError):
                lines = path.read_text(errors="replace").splitlines(keepends=True)
                parts.append(f"{path.name}:\n{''.join(lines[-_TAIL_LINES:])}")
        return "\n".join(parts)
