"""Starting, finding and watching one engine process.

Owns the process and the connection to it: whoever asks gets a connected channel, to an engine that runs already (a restarted
worker finds the one of its predecessor) or to a new one. Knows nothing of requests.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from ts_stateful.config import EngineConfig
from ts_stateful.process.spec import EngineSpec

__all__ = ["EngineDied", "Supervisor", "Timeouts"]

logger = logging.getLogger(__name__)

_POLL_S = 0.02
_LOG_LINES = 15
_SPIN_COUNT = "2000"  # some microseconds; then a waiting thread sleeps


class EngineDied(RuntimeError):
    """The engine process ended before it answered; the message has the end of its log."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds an engine may take to load, a request waits for one that restarts, and one may show no sign of life."""

    load_s: float
    restart_s: float
    heartbeat_s: float

    @classmethod
    def of(cls, settings: EngineConfig) -> Timeouts:
        """Those of a configuration."""
        return cls(settings.load_timeout_sec, settings.restart_deadline_sec, settings.heartbeat_sec)


class Supervisor:
    """Starts one engine process and connects to it. `clock` and `sleep` are seams for tests."""

    def __init__(
        self,
        spec: EngineSpec,
        load_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._spec = spec
        self._load_timeout_s = load_timeout_s
        self._clock = clock
        self._sleep = sleep
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self.engine_pid: int | None = None

    def connect(self) -> socket.socket:
        """A connection to the engine, which is started if it does not run.

        Raises:
            EngineDied: the process ended, or did not answer within `loadTimeoutSec`.
        """
        deadline = self._clock() + self._load_timeout_s
        while not self._stopping.is_set():
            connection = self.find()
            if connection is not None:
                return connection
            if self._process is not None and self._process.poll() is not None:
                status, self._process = self._process.returncode, None
                raise EngineDied(f"the engine ended with status {status}\n{self._log_tail()}")
            if self._process is None:
                self._start()
            if self._clock() > deadline:
                raise EngineDied(
                    f"the engine did not answer within {self._load_timeout_s:g} s (loadTimeoutSec)"
                )
            self._sleep(_POLL_S)
        raise EngineDied("the worker is stopping")

    def lost(self) -> None:
        """The connection broke: what is left of the process is put out of its misery and forgotten."""
        self.kill()
        if self._process is not None:
            self._process.wait()
            logger.warning("the engine ended with status %s", self._process.returncode)
        elif self.engine_pid is not None:  # an earlier worker's, or another one's
            while not _has_ended(self.engine_pid):  # or its socket might still take connections
                self._sleep(_POLL_S)
        self._process = self.engine_pid = None

    def kill(self) -> None:
        """Kills the engine process, wherever it hangs."""
        pid = self._process.pid if self._process is not None else self.engine_pid
        if pid is not None and (self._process is None or self._process.poll() is None):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Ends an attempt to connect; a running engine is left to the next worker."""
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.returncode = (
                0  # not ours any more: it must not be waited for, nor warned about
            )

    def find(self) -> socket.socket | None:
        """A connection to an engine that runs already; None if there is none."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(self._spec.path("sock")))
        except OSError:
            connection.close()
            return None
        return connection

    def _start(self) -> None:
        """Starts the engine, unless one that another worker has started is on its way.

        An engine holds a lock for as long as it lives. It is born with it, so that of several workers one alone starts it.
        """
        log_path = self._spec.path("log")
        package_root = str(Path(__file__).parents[2])
        paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
        with self._spec.path("lock").open("w") as lock, log_path.open("ab") as log:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            module = ["-m", "ts_stateful.process.engine_main"]
            # A session of its own: signals to the worker's group and the end of its pipes do not reach the engine.
            self._process = subprocess.Popen(
                [sys.executable, *module, str(lock.fileno()), str(self._spec.save())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock.fileno(),),
                env={**_threading(os.environ), "PYTHONPATH": os.pathsep.join(paths)},
            )
        logger.info("engine %d starts, log in %s", self._spec.index, log_path)

    def _log_tail(self) -> str:
        try:
            lines = self._spec.path("log").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-_LOG_LINES:])


def _has_ended(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _threading(environ: Mapping[str, str]) -> dict[str, str]:
    """How an engine's threads wait for each other, unless the operator has said it.

    By default OpenMP's threads spin for long. On cores that they share with TorchServe's JVM and worker they spin while the
    thread that they wait for is not running, which was measured to make a step up to ten times as long.
    """
    said = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & environ.keys()
    return {**environ} if said else {**environ, "GOMP_SPINCOUNT": _SPIN_COUNT}
