"""Start, discovery and supervision of one engine process."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import threading

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.config.control_groups import ControlGroups
from ts_stateful.process.load_progress import LoadProgress
from ts_stateful.process.sockets import connect
from ts_stateful.process.spec import EngineSpec
from ts_stateful.process.worker.fork_server import ForkedEngine, ForkServer, has_ended

__all__ = ["EngineDied", "Supervisor"]

logger = logging.getLogger(__name__)

_POLL_S = 0.02
_LOG_LINES = 15
_REPORT_S = 10.0  # in which the fork server must report the end of a killed engine


class EngineDied(RuntimeError):
    """The engine process exited before it answered; the message has the reason, or the end of its log."""


class Supervisor:
    """One engine process: an existing one, which a restarted worker finds, or a new one."""

    def __init__(
        self,
        spec: EngineSpec,
        load_timeout_s: float,
        fork_server: ForkServer,
        clock: Clock = SYSTEM_CLOCK,
        groups: ControlGroups | None = None,
    ) -> None:
        self._spec = spec
        self._load_timeout_s = load_timeout_s
        self._fork_server = fork_server
        self._clock = clock
        self._groups = groups or ControlGroups()
        self._num_killed = self._groups.num_killed()
        self._process: ForkedEngine | None = None  # None if another worker started it
        self._stopping = threading.Event()
        self.engine_pid: int | None = None
        self.num_lost, self.recovery_s = 0, 0.0  # engines, and the time until the next one answered
        self._lost_at: float | None = None

    def connect(self) -> socket.socket:
        """Connect to the engine; start it if it does not run.

        Raises:
            EngineDied: the process exited, or did not answer within `loadTimeoutSec`.
        """
        deadline = self._clock.monotonic() + self._load_timeout_s
        while not self._stopping.is_set():
            connection = self.find()
            if connection is not None:
                if self._lost_at is not None:
                    self.recovery_s += self._clock.monotonic() - self._lost_at
                    self._lost_at = None
                return connection
            if self._process is not None and self._process.has_ended():
                status, self._process = self._process.status, None
                raise EngineDied(self._reason(status))
            if self._process is None:
                self._start()
            if self._clock.monotonic() > deadline:
                raise EngineDied(
                    f"the engine did not answer within {self._load_timeout_s:g} s;"
                    " raise handler.loadTimeoutSec if it needs longer"
                )
            self._clock.sleep(_POLL_S)
        raise EngineDied("the worker is stopping")

    def lost(self) -> None:
        """Kill the process if it is still running, and forget it; call this when the connection breaks."""
        self.num_lost += 1
        self._lost_at = self._clock.monotonic()
        self.kill()
        deadline = self._clock.monotonic() + _REPORT_S
        while not self._has_ended():  # its socket might still accept connections
            if self._clock.monotonic() > deadline:
                self._fork_server.close()  # it hangs; the next start uses a new one
            self._clock.sleep(_POLL_S)
        if self._process is not None:
            status = self._process.status
            logger.warning("the engine exited with status %s%s", status, self._killed(status))
        self._process = self.engine_pid = None

    def kill(self) -> None:
        """Kill the engine process, even if it hangs."""
        if self._has_ended():
            return
        pid = self._process.pid if self._process is not None else self.engine_pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _killed(self, status: int | None) -> str:
        before, self._num_killed = self._num_killed, self._groups.num_killed()
        did_kill = status == -signal.SIGKILL and self._num_killed > before
        return "; the kernel has killed at this container's limit of memory" if did_kill else ""

    def stop(self) -> None:
        """End an attempt to connect; a running engine stays for the next worker."""
        self._stopping.set()

    def _has_ended(self) -> bool:
        if self._process is not None:
            return self._process.has_ended()
        return self.engine_pid is None or has_ended(self.engine_pid)

    def find(self) -> socket.socket | None:
        """Connect to the engine if it runs already; return None if it does not."""
        return connect(self._spec.path("sock"))

    def prepare(self) -> None:
        """Import what an engine needs, so that a successor of a running engine starts quickly."""
        with self._spec.path("log").open("ab") as log:
            self._fork_server.prepare(self._spec, log)

    def _start(self) -> None:
        """Start the engine, unless another worker has just started it.

        An engine is forked with its lock and holds it until it exits. So only one of several workers starts it.
        """
        log_path = self._spec.path("log")
        with self._spec.path("lock").open("w") as lock, log_path.open("ab") as log:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            self._spec.path("reason").unlink(missing_ok=True)  # of an earlier attempt
            LoadProgress(self._spec.path("loading"), self._clock).begin("importing libraries")
            self._process = self._fork_server.fork(self._spec, lock, log)
        logger.info("starting engine %d; its log is %s", self._spec.index, log_path)

    def _reason(self, status: int | None) -> str:
        """Return why the engine exited: what it wrote down, or the end of its log."""
        with contextlib.suppress(OSError):
            return self._spec.path("reason").read_text(encoding="utf-8")
        log = self._spec.path("log")
        with contextlib.suppress(OSError):
            lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
            return f"the engine {_ended(status)}; its log, {log}, ends with:\n" + "\n".join(lines)
        return f"the engine {_ended(status)}"


def _ended(status: int | None) -> str:
    if status is None:
        return "exited with unknown status"
    if status == -signal.SIGKILL:
        return "was killed, perhaps for want of memory"
    return f"exited with status {status}"
