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


@dataclass(frozen=True)
class WorkerProcess:
    """The process of a worker; `server` is TorchServe's own."""

    pid: int
    server: psutil.Process
    is_async: bool  # started for the async profile

    @classmethod
    def find(cls, worker: ModelWorker) -> WorkerProcess | None:
        """Find the process of a worker; None if it does not run."""
        command = _command(worker.pid)
        with contextlib.suppress(psutil.Error):
            if _is_worker(command):
                server = psutil.Process(psutil.Process(worker.pid).ppid())
                return cls(worker.pid, server, "--async" in command)
        return None

    @property
    def is_running(self) -> bool:
        """Return True while the process runs; False for a zombie."""
        return _is_worker(_command(self.pid))

    def end_successors(self, number: str) -> None:
        """End what the same TorchServe starts in the next seconds for this worker, which is scaled away.

        TorchServe does not list such a process. It would stay, and in the async profile take requests, and lose them.
        """
        threading.Thread(target=_end_workers, args=(self.server, number), daemon=True).start()


def _end_workers(server: psutil.Process, number: str) -> None:
    pause = threading.Event()
    for _ in range(round(_STRAY_S / _LOOK_S)):
        with contextlib.suppress(psutil.Error):
            for child in server.children():
                command = _command(child.pid)
                # The number is the worker's port, or the end of its socket's name.
                if _is_worker(command) and number in {part.rpartition(".")[2] for part in command}:
                    child.kill()
        pause.wait(_LOOK_S)


def _is_worker(command: list[str]) -> bool:
    return any(argument.endswith(_PROGRAM) for argument in command)


def _command(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    return []
