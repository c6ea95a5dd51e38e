"""A server on this machine with a folder of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

import psutil

from ts_stateful.process.drain import engines_in
from ts_stateful.process.load_progress import read_load_step
from ts_stateful.process.private import is_private
from ts_stateful.process.spec import STATE_FOLDER, engine_files, keep_logs
from ts_stateful.serving.local import ServerFailed
from ts_stateful.serving.ports import HOST, Ports
from ts_stateful.serving.server_log import ServerLog

__all__ = ["LocalServer", "ServerSettings", "make_failed_folder", "make_home", "temporary_folder"]

_LOCK = "server.lock"
_FAILED, _MOST_FAILED = "ts-stateful-failed-", 5
_MAX_BASE = 76  # bytes, before /ts-12345678/tmp/.ts.sock.12345, of the 107 that the kernel takes


def make_home() -> tuple[Path, int]:
    """Create the folder of a server, and remove those that killed servers of this user left.

    Return it with the descriptor of its lock. Whichever process has that open keeps the folder.

    Raises:
        ServerFailed: there is no temporary folder, or its path is too long.
    """
    try:
        base = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise ServerFailed(f"{error.strerror}; set TMPDIR to one that can be written") from None
    if len(os.fsencode(base)) > _MAX_BASE:
        raise ServerFailed(f"TMPDIR is too long for sockets: more than {_MAX_BASE} bytes, {base}")
    for lock in base.glob(f"ts-*/{_LOCK}"):
        if is_private(lock.parent):
            _remove_unlocked(lock)
    home = Path(tempfile.mkdtemp(prefix="ts-"))
    made = home / "lock"
    descriptor = os.open(made, os.O_CREAT | os.O_WRONLY, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    made.rename(home / _LOCK)  # other servers find it only now
    return home, descriptor


def make_failed_folder() -> Path:
    """Create a folder for the logs of a server that does not start; only the last five of this user stay."""
    folders = Path(tempfile.gettempdir()).glob(f"{_FAILED}*")
    with contextlib.suppress(OSError):  # another server removes them, too
        mine = sorted(filter(is_private, folders), key=lambda folder: folder.stat().st_mtime)
        for folder in mine[: 1 - _MOST_FAILED]:
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=_FAILED))


def temporary_folder(folder: Path) -> dict[str, str]:
    """Return the variables that keep all files of a server's processes in its folder, also while its disk is full."""
    return {"TMPDIR": str(folder), "TS_STATEFUL_RUNTIME_DIR": str(folder)}


def _remove_unlocked(lock: Path) -> None:
    with contextlib.suppress(OSError), lock.open() as file:  # or its server runs, or has just ended
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.parent)  # which follows no links


_Server = TypeVar("_Server", bound="LocalServer")
_TAIL_LINES = 60


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of a server of any kind."""

    name: str | None = None  # of the first model; by default its archive's, or `chat`
    ports: Ports = field(default_factory=Ports)
    log_file: Path | None = None  # gets the output; without it, only the tail is kept, in memory
    environ: Mapping[str, str] = field(default_factory=dict)  # added to this process's own
    state_dir: Path | None = None  # for what outlives the server
    start_timeout_s: float = 120.0


class LocalServer(ABC):
    """A server as a context manager: it always stops at the end of the block. Its output goes to `echo` as well."""

    _host = _metrics_host = HOST  # by which this machine reaches the ports
    _secure = ""  # "s" with TLS

    def __init__(self, settings: ServerSettings, echo: TextIO | None) -> None:
        self.name = settings.name or "chat"
        self.ports = settings.ports.filled()
        self.log_file = settings.log_file
        self._common = settings
        self._log = ServerLog(self.log_file, echo, {**os.environ, **settings.environ})
        self._home: Path | None = None
        self._lock = -1  # of the folder, see `make_home`

    @property
    def http_url(self) -> str:
        """The URL of the inference API."""
        return f"http{self._secure}://{self._host}:{self.ports.http}"

    @property
    def management_url(self) -> str:
        """The URL of the management API."""
        return f"http://{HOST}:{self.ports.management}"

    @property
    def metrics_url(self) -> str:
        """The URL of the metrics, in Prometheus's format under /metrics."""
        return f"http://{self._metrics_host}:{self.ports.metrics}"

    @property
    def grpc_url(self) -> str:
        """The URL of the inference API by gRPC, for `ts_stateful.client.connect`."""
        return f"grpc{self._secure}://{self._host}:{self.ports.grpc}"

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

    def make_home(self) -> Path:
        """Make the server's folder, and return it."""
        self._home, self._lock = make_home()
        (self._home / "tmp").mkdir(mode=0o700)
        return self._home

    def variables(self, home: Path) -> dict[str, str]:
        """Return the environment of the server's processes."""
        environ = {**os.environ, **self._common.environ, **temporary_folder(home / "tmp")}
        if self._common.state_dir is not None:
            environ[STATE_FOLDER] = str(self._common.state_dir.resolve())
        return environ

    def remove_home(self) -> None:
        """Remove the server's folder; its logs stay in the folder of what outlives the server."""
        if self._home is not None:
            if self._common.state_dir is not None:
                keep_logs(self._home, self._common.state_dir)
            shutil.rmtree(self._home, ignore_errors=True)
            os.close(self._lock)
            self._home = None

    def engines(self) -> list[psutil.Process]:
        """Find the engine processes of this server."""
        return [] if self._home is None else engines_in(self._home / "tmp")

    def failure(self, what: str, reason: str = "") -> ServerFailed:
        """Return the error of a server that does not start: the reason in a line, and where its logs stay.

        A front and an engine write theirs into files. Without any, the error has `what` failed, and the end of the log.
        """
        assert self._home is not None
        self._log.status("")
        folder = self._common.state_dir or make_failed_folder()
        logs = keep_logs(self._home, folder)
        with contextlib.suppress(OSError):  # the disk may be full, which may be the reason
            (logs / "server.log").write_text(str(self._log), encoding="utf-8")
        for path in [*self._home.glob("*.reason"), *engine_files(self._home, "reason")]:
            with contextlib.suppress(OSError):
                reason = path.read_text(encoding="utf-8")
                break
        if reason:
            return ServerFailed(f"{reason.rstrip('.')}; the logs are in {logs}")
        return ServerFailed(f"{what}; the logs, in {logs}, end with:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """Return the last lines of the server's output and of its engines' logs."""
        parts = [str(self._log)]
        for path in engine_files(self._home, "log") if self._home is not None else ():
            with contextlib.suppress(OSError):
                lines = path.read_text(errors="replace").splitlines(keepends=True)
                parts.append(f"{path.name}:\n{''.join(lines[-_TAIL_LINES:])}")
        return "\n".join(parts)
