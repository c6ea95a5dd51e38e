"""A worker process of a TorchServe on this machine."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

from ts_stateful.client.management import ModelWorker

__all__ = ["WorkerProcess"]

_PROGRAM = "model_service_worker.py"
_STRAY_S = 15.0  # TorchServe starts a worker again 1 s after it died
_LOOK_S = 0.1


@dataclass
class WorkerProcess:
    """The process of a worker; `server` is TorchServe's own."""

    pid: int
    worker_id: str
    server: psutil.Process
    is_async: bool  # started for the async profile
    _hunter: threading.Thread | None = None

    @classmethod
    def find(cls, worker: ModelWorker) -> WorkerProcess | None:
        """Find the process of a worker; None if it does not run."""
        command = _command(worker.pid)
        with contextlib.suppress(psutil.Error):
            if _is_worker(command):
                server = psutil.Process(psutil.Process(worker.pid).ppid())
                return cls(worker.pid, worker.id, server, "--async" in command)
        return None

    @property
    def is_running(self) -> bool:
        """Return True while the process runs; False for a zombie."""
        return _is_worker(_command(self.pid))

    def end_successors(self) -> None:
        """End what TorchServe starts for this worker in the next seconds; idempotent. Call it before the worker is scaled away.

        TorchServe does not list such a process. It would take requests, and lose them.
        """
        if self._hunter is None:
            self._hunter = threading.Thread(target=self._end_successors, daemon=True)
            self._hunter.start()

    def _end_successors(self) -> None:
        pause = threading.Event()
        for _ in range(round(_STRAY_S / _LOOK_S)):
            with contextlib.suppress(psutil.Error):
                for child in self.server.children():
                    if child.pid != self.pid and self._is_mine(_command(child.pid)):
                        child.kill()
            pause.wait(_LOOK_S)

    def _is_mine(self, command: list[str]) -> bool:
        # The worker's number is its port, or the end of its socket's name.
        numbers = {argument.rpartition(".")[2] for argument in command}
        return _is_worker(command) and self.worker_id in numbers


def _is_worker(command: list[str]) -> bool:
    return any(argument.endswith(_PROGRAM) for argument in command)


def _command(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    return []
