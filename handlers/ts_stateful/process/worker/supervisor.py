"""Starting, finding and watching one engine process.

Owns the connection to it: whoever asks gets a connected channel, to an engine that runs already (a restarted worker finds the
one of its predecessor) or to a new one, which `fork_server` makes. Knows nothing of requests.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ts_stateful.config.schema import EngineConfig
from ts_stateful.process.spec import EngineSpec
from ts_stateful.process.worker.fork_server import ForkedEngine, ForkServer, has_ended

__all__ = ["EngineDied", "Supervisor", "Timeouts"]

logger = logging.getLogger(__name__)

_POLL_S = 0.02
_LOG_LINES = 15
_TOLD_S = 10.0  # for the end of a killed engine to be told


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
        fork_server: ForkServer,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._spec = spec
        self._load_timeout_s = load_timeout_s
        self._fork_server = fork_server
        self._clock = clock
        self._sleep = sleep
        self._process: ForkedEngine | None = None  # if it was started here
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
            if self._process is not None and self._process.has_ended():
                status, self._process = self._process.status, None
                told = "an unknown status" if status is None else f"status {status}"
                raise EngineDied(f"the engine ended with {told}\n{self._log_tail()}")
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
        deadline = self._clock() + _TOLD_S
        while not self._has_ended():  # or its socket might still take connections
            if self._clock() > deadline:
                self._fork_server.close()  # it hangs: the next one is asked for the next engine
            self._sleep(_POLL_S)
        if self._process is not None:
            logger.warning("the engine ended with status %s", self._process.status)
        self._process = self.engine_pid = None

    def kill(self) -> None:
        """Kills the engine process, wherever it hangs."""
        if self._has_ended():
            return
        pid = self._process.pid if self._process is not None else self.engine_pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Ends an attempt to connect; a running engine is left to the next worker."""
        self._stopping.set()

    def _has_ended(self) -> bool:
        if self._process is not None:
            return self._process.has_ended()
        # An earlier worker's, or another one's.
        return self.engine_pid is None or has_ended(self.engine_pid)

    def find(self) -> socket.socket | None:
        """A connection to an engine that runs already; None if there is none."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(self._spec.path("sock")))
        except OSError:
            connection.close()
            return None
        return connection

    def prepare(self) -> None:
        """The engine was found here: what the next one needs is imported already when this one dies."""
        with self._spec.path("log").open("ab") as log:
            self._fork_server.prepare(self._spec, log)

    def _start(self) -> None:
        """Starts the engine, unless one that another worker has started is on its way.

        An engine holds a lock for as long as it lives. It is born with it, so that of several workers one alone starts it.
        """
        log_path = self._spec.path("log")
        with self._spec.path("lock").open("w") as lock, log_path.open("ab") as log:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            self._process = self._fork_server.fork(self._spec, lock, log)
        logger.info("engine %d starts, log in %s", self._spec.index, log_path)

    def _log_tail(self) -> str:
        try:
            lines = self._spec.path("log").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-_LOG_LINES:])
