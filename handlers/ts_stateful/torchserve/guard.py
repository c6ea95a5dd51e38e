"""The watch over the models of a TorchServe on this machine, by the processes of their workers.

One gRPC call that is half-closed can end TorchServe's thread for a worker, in every profile. The worker exits, and TorchServe
0.12.0 starts no other one or, in the async profile, one that it loses. /ping stays Healthy meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from ts_stateful.client.errors import ClientError, ServerRefused
from ts_stateful.client.management import Description, Management, ModelWorker
from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.doctor.evidence import Evidence, tried
from ts_stateful.doctor.repair import RepairOutput
from ts_stateful.doctor.watch import Watch

__all__ = ["Guard", "ModelGuard", "is_watched"]

_PROGRAM = "model_service_worker.py"
_STRAY_S = 15.0  # TorchServe starts a worker again 1 s after it died
_VARIABLE = "TS_STATEFUL_WATCH"
_OFF = ("0", "false", "no", "off")
_LOOK_S = 0.1  # at processes
_DESCRIBE_S = 5.0  # between two descriptions while nothing happens
_LIST_S = 1.0  # between two looks for new models
_PATIENCE = 4  # 0.8 s: an attack may hit each new worker before it is seen


def is_watched(environ: Mapping[str, str]) -> bool:
    """Return True unless TS_STATEFUL_WATCH turns the watch off."""
    return environ.get(_VARIABLE, "").strip().lower() not in _OFF


class WorkerExaminer:
    """The examination of one model by the processes of its workers. An `Examiner`. `is_unregistered` is of the last look.

    It sends the model no request. So a model that is busy, loading or draining never looks like a stopped one.
    """

    def __init__(self, name: str, management: Management) -> None:
        self.management = management
        self._name = name
        self._running: dict[str, WorkerProcess] = {}  # by the number of the worker
        self._latest: WorkerProcess | None = None  # of any worker that ran
        self._were_ready: set[str] = set()  # numbers of workers, as in the next one
        self._lost: set[str] = set()  # numbers of workers since the last look that found one ready
        self._barred: set[str] = set()  # numbers of workers whose successors are ended
        self._is_settled = False
        self.is_unregistered = False

    @property
    def is_undisturbed(self) -> bool:
        """Return True if nothing was in progress at the last look, and all processes have been running since."""
        return self._is_settled and all(process.is_running for process in self._running.values())

    def examine(self, _before: Evidence | None) -> Evidence:
        """See `Examiner`."""
        description = tried(lambda: self.management.describe(self._name))
        has_exited, replaced = False, set[str]()
        if isinstance(description, Description):
            has_exited = self._have_exited(description)
            numbers = {worker.id for worker in description.workers}
            replaced = self._lost - numbers
            # On a busy machine, TorchServe may learn only now that the process died, and start another one.
            self._bar(replaced)
            if has_exited:
                self._lost |= numbers
            elif description.is_ready:
                self._lost = set()
        self._is_settled = (
            isinstance(description, Description) and description.is_ready and not has_exited
        )
        evidence = Evidence(
            self._name, description, None, has_exited=has_exited, was_replaced=bool(replaced)
        )
        self.is_unregistered = evidence.is_unregistered
        return evidence

    def _have_exited(self, description: Description) -> bool:
        """Return True if all workers have exited for good. A model with several workers is not one of this package."""
        workers = description.workers if description.min_workers == 1 else ()
        exited = [self._has_exited(worker, description.stateful) for worker in workers]
        numbers = {worker.id for worker in workers}
        self._running = {key: one for key, one in self._running.items() if key in numbers}
        self._were_ready &= numbers
        return bool(exited) and all(exited)

    def _has_exited(self, worker: ModelWorker, stateful: bool) -> bool:
        process = WorkerProcess.find(worker)
        if process is not None:
            self._running[worker.id] = self._latest = process
        if worker.status == "READY":
            is_lost = process is None  # TorchServe's thread ended without a trace
            self._were_ready.add(worker.id)
        else:
            # The number of a new worker's process is -1 until it is reported. In the sequence profile the thread cannot start
            # again. In the async profile it can, but its worker never becomes ready.
            has_died = process is None and worker.pid > 0
            has_died = has_died or worker.id in self._lost | self._were_ready
            is_lost = has_died and (stateful or self._is_async)
        if is_lost and self._is_async:
            self._bar({worker.id})
        return is_lost

    def _bar(self, numbers: set[str]) -> None:
        if self._latest is not None:
            for number in numbers - self._barred:
                self._latest.end_successors(number)
            self._barred |= numbers

    @property
    def _is_async(self) -> bool:
        return self._latest is not None and self._latest.is_async


class ModelGuard:
    """The watch over one model, in a thread of its own: the repair of a model takes seconds."""

    def __init__(
        self, name: str, management: Management, output: RepairOutput, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._examiner = WorkerExaminer(name, management)
        self._watch = Watch(self._examiner, output, repair=True, most_patience=_PATIENCE)
        self._clock = clock
        self._describe_at = -math.inf

    def look(self) -> bool:
        """Look once, and describe the model if a process has exited. Return False if the model was unregistered."""
        now = self._clock.monotonic()
        if now < self._describe_at and self._examiner.is_undisturbed:
            return True
        self._describe_at = now + _DESCRIBE_S
        self._watch.look_again()
        return not self._examiner.is_unregistered or self._watch.is_repairing

    def run(self, stop: threading.Event) -> None:
        """Look until `stop` is set or the model is unregistered."""
        while not stop.wait(_LOOK_S) and self.look():
            pass


class Guard:
    """The watch over all models of a TorchServe. It replaces workers that TorchServe has lost, and prints what it does.

    It closes `management` when it has ended.
    """

    def __init__(self, management: Management, output: RepairOutput) -> None:
        self._management = management
        self._output = output
        self._stop = threading.Event()
        self._models: dict[str, threading.Thread] = {}
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Watch in threads of its own until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Begin no more repairs."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        """Wait, after `stop`, for the end of what is in progress."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        refusal = ""
        while True:
            try:
                for name in self._management.models():
                    if name not in self._models or not self._models[name].is_alive():
                        self._models[name] = self._attend(name)
            except ClientError as error:
                # If none listens, TorchServe starts or stops. If it refuses, its management key has expired.
                if isinstance(error, ServerRefused) and error.message != refusal:
                    refusal = error.message
                    self._output.line(f"error: no repairs, the management API refuses: {refusal}")
            if self._stop.wait(_LIST_S):
                break
        for thread in self._models.values():
            thread.join()
        self._management.close()

    def _attend(self, name: str) -> threading.Thread:
        guard = ModelGuard(name, self._management, self._output)
        thread = threading.Thread(
            target=guard.run, args=(self._stop,), name=f"watch-{name}", daemon=True
        )
        thread.start()
        return thread


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
