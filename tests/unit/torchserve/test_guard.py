"""The watch over workers, with processes in place of TorchServe's and a management API in memory."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.support.clock import FakeClock
from tests.support.worker import eventually
from ts_stateful.client.errors import (
    ClientError,
    DeadlineExceeded,
    ServerRefused,
    ServerUnreachable,
)
from ts_stateful.client.management import Description, Management, ModelWorker
from ts_stateful.serving.server_log import ServerLog
from ts_stateful.torchserve.guard import Guard, ModelGuard, is_watched

_SLEEP = "import sys; sys.stdin.read()"
_numbers = itertools.count(9000)


def new_number() -> str:
    """The number of a worker; TorchServe never uses one twice. Successors of an earlier one may be ended."""
    return str(next(_numbers))


class Machine:
    """A TorchServe with one model, whose workers are processes that do nothing."""

    def __init__(self, stack: ExitStack, profile: str) -> None:
        self._stack = stack
        self.profile = profile
        self.deeds: list[str] = []
        self.description = Description(
            model_name="chat",
            model_url="chat.mar",
            min_workers=1,
            max_workers=1,
            batch_size=1,
            continuous_batching=profile == "continuous",
            stateful=profile == "sequence",
        )
        self.error: ClientError | None = None
        self.is_attacked = False  # new workers are lost at once
        self.start()

    @property
    def worker(self) -> ModelWorker:
        """The worker in TorchServe's view."""
        (worker,) = self.description.workers
        return worker

    def process(self, number: str) -> subprocess.Popen[bytes]:
        """Start a process with the command line of a worker."""
        arguments = ["model_service_worker.py", "--sock-name", f"/tmp/.ts.sock.{number}"]
        arguments += ["--async"] if self.profile == "async" else []
        command = [sys.executable, "-c", _SLEEP, *arguments]
        process = self._stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
        self._stack.callback(process.kill)
        shown = Path(f"/proc/{process.pid}/cmdline")  # empty for a moment
        eventually(
            lambda: process.poll() is not None or b"model_service_worker" in shown.read_bytes()
        )
        return process

    def start(self) -> None:
        """Start another worker, which is ready."""
        number = new_number()
        self.current = self.process(number)
        self.set(ModelWorker(number, "READY", self.current.pid))
        if self.is_attacked:
            self.kill()

    def set(self, *workers: ModelWorker) -> None:
        """Let TorchServe list these workers."""
        self.description = msgspec.structs.replace(self.description, workers=workers)

    def set_status(self, status: str, pid: int | None = None) -> None:
        """Let TorchServe give the worker this status, and another process if one is named."""
        worker = self.worker
        self.set(ModelWorker(worker.id, status, worker.pid if pid is None else pid))

    def kill(self) -> None:
        """Kill the worker; TorchServe calls it READY still."""
        self.current.kill()
        self.current.wait()


class MachineManagement(Management):
    """The management API of that TorchServe."""

    def __init__(self, machine: Machine) -> None:
        super().__init__("http://127.0.0.1:1")
        self.machine = machine
        self.num_descriptions = 0
        self.register_fails = False

    def _check(self) -> None:
        if self.machine.error is not None:
            raise self.machine.error

    def models(self) -> list[str]:
        """See `Management`."""
        self._check()
        return ["chat"]

    def describe(self, model: str) -> Description:
        """See `Management`."""
        self.num_descriptions += 1
        self._check()
        return self.machine.description

    def scale(self, model: str, num_workers: int, timeout_s: float) -> None:
        """See `Management`."""
        self.machine.deeds.append(f"scale {num_workers}")
        self.machine.set()
        if num_workers:
            self.machine.start()

    def unregister(self, model: str) -> None:
        """See `Management`."""
        self.machine.deeds.append("unregister")
        self.machine.error = _MISSING

    def register(self, model: str, url: str, timeout_s: float) -> None:
        """See `Management`."""
        self.machine.deeds.append("register")
        if self.register_fails:
            raise DeadlineExceeded("no answer within 10 s")
        self.machine.error = None
        self.machine.start()


_MISSING = ServerRefused("Model not found: chat", status=404, kind="ModelNotFoundException")
REPAIRS = {
    "continuous": ["scale 0", "scale 1"],
    "sequence": ["unregister", "register"],
    "async": ["scale 0", "scale 1"],
}


class Watched:
    """A machine, its guard, and the lines that the guard has printed."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.clock = FakeClock()
        self.management = MachineManagement(machine)
        self._echo = io.StringIO()
        self.output = ServerLog(echo=self._echo)
        self._guard = ModelGuard("chat", self.management, self.output, self.clock)
        self.look()

    @property
    def said(self) -> str:
        """The lines printed so far."""
        return self._echo.getvalue()

    def look(self, times: int = 1) -> list[str]:
        """Look so many times, and return the repairs so far."""
        for _ in range(times):
            self.is_over = not self._guard.look()
        return self.machine.deeds


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    """Processes that end with the test, and threads soon after it."""
    monkeypatch.setattr("ts_stateful.torchserve.guard._STRAY_S", 3.0)
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=list(REPAIRS))
def watched(request: pytest.FixtureRequest, stack: ExitStack) -> Watched:
    """A watched model in each profile."""
    return Watched(Machine(stack, request.param))


def test_a_worker_that_torchserve_lost_is_replaced_after_two_looks(watched: Watched) -> None:
    """It is READY without a process; this holds for each loss."""
    repair = REPAIRS[watched.machine.profile]
    for times in (1, 2, 3):
        watched.machine.kill()
        assert watched.look() == repair * (times - 1)
        assert watched.look() == repair * times
        assert watched.look(5) == repair * times
    assert "error: worker: the process of chat exited" in watched.said
    assert watched.said.count("repair: done") == 3


def test_workers_that_are_lost_at_once_are_replaced(stack: ExitStack) -> None:
    """An attack goes on, or its requests wait in the queue, which registering discards. A repair takes eight looks at most."""
    watched = Watched(Machine(stack, "continuous"))
    watched.machine.is_attacked = True
    watched.machine.kill()
    watched.look(2)
    for times in range(5):
        assert watched.machine.deeds == REPAIRS["continuous"] + REPAIRS["sequence"] * times
        watched.look(8)
    watched.machine.is_attacked = False
    watched.look(9)
    watched.machine.kill()
    assert watched.look(8)[-2:] == REPAIRS["continuous"]


def test_a_model_whose_worker_runs_is_described_rarely(watched: Watched) -> None:
    """Looks at the process cost TorchServe nothing."""
    before = watched.management.num_descriptions
    watched.look(100)
    assert watched.management.num_descriptions == before
    watched.clock.sleep(5)
    watched.look(100)
    assert watched.management.num_descriptions == before + 1


def test_a_worker_that_loads_is_left_alone(watched: Watched) -> None:
    """TorchServe has another one, which has no process yet or has not reported it, or which loads the model."""
    number = new_number()
    watched.machine.set(ModelWorker(number, "UNLOADING", -1))
    assert watched.look(50) == []
    loading = watched.machine.process(number)
    watched.machine.set(ModelWorker(number, "UNLOADING", loading.pid))
    assert watched.look(50) == []


def test_a_model_that_was_scaled_to_none_is_left_alone(watched: Watched) -> None:
    """Its operators did it."""
    watched.machine.set()
    watched.machine.kill()
    assert watched.look(50) == []
    assert watched.said == ""


def test_several_workers_are_left_alone(watched: Watched) -> None:
    """Such a model is not one of this package, which has one worker."""
    watched.machine.description = msgspec.structs.replace(
        watched.machine.description, min_workers=2
    )
    watched.machine.kill()
    assert watched.look(50) == []


def test_one_of_two_workers_is_left_alone(watched: Watched) -> None:
    """The other one serves: TorchServe replaces workers of a model one by one."""
    number = new_number()
    other = watched.machine.process(number)
    watched.machine.set(watched.machine.worker, ModelWorker(number, "READY", other.pid))
    watched.machine.kill()
    assert watched.look(50) == []


def test_a_torchserve_that_stops_is_left_alone(watched: Watched) -> None:
    """It closes its ports before its workers."""
    watched.machine.error = ServerUnreachable("connection refused")
    watched.machine.kill()
    assert watched.look(50) == []
    assert not watched.is_over


def test_torchserve_restarts_workers_of_the_continuous_profile(stack: ExitStack) -> None:
    """A worker that was killed is known to TorchServe: it is not READY until the next one has loaded."""
    watched = Watched(Machine(stack, "continuous"))
    watched.machine.kill()
    watched.machine.set_status("UNLOADING")
    assert watched.look(50) == []
    successor = watched.machine.process(watched.machine.worker.id)
    watched.machine.set_status("UNLOADING", successor.pid)
    assert watched.look(50) == []
    watched.machine.set_status("READY", successor.pid)
    assert watched.look(50) == []


def test_torchserve_cannot_restart_workers_of_the_sequence_profile(stack: ExitStack) -> None:
    """Its thread ends in the attempt."""
    watched = Watched(Machine(stack, "sequence"))
    watched.machine.kill()
    watched.machine.set_status("UNLOADING")
    assert watched.look(2) == REPAIRS["sequence"]


@pytest.mark.parametrize("restarts", [False, True])
def test_torchserve_loses_restarted_workers_of_the_async_profile(
    stack: ExitStack, restarts: bool
) -> None:
    """It never calls one ready again, and requests end it."""
    watched = Watched(Machine(stack, "async"))
    watched.machine.kill()
    pid = watched.machine.process(watched.machine.worker.id).pid if restarts else None
    watched.machine.set_status("UNLOADING", pid)
    assert watched.look(2) == REPAIRS["async"]


def test_a_worker_of_the_async_profile_that_no_look_has_seen_ready_is_replaced(
    stack: ExitStack,
) -> None:
    """It took the place of another one, and was lost at once. TorchServe starts it again and again."""
    watched = Watched(Machine(stack, "async"))
    watched.machine.is_attacked = True
    watched.machine.kill()
    watched.look(2)
    watched.machine.is_attacked = False
    watched.machine.set_status("UNLOADING")
    assert watched.look(8) == REPAIRS["async"] + REPAIRS["sequence"]


def test_what_torchserve_starts_for_a_worker_that_was_replaced_is_ended(watched: Watched) -> None:
    """It does so a second after it has seen the death of the worker, on a busy machine after the repair; other workers stay."""
    old = watched.machine.worker.id
    watched.machine.kill()
    watched.look(3)
    stray = watched.machine.process(old)
    stray.wait()
    assert psutil.pid_exists(watched.machine.worker.pid)
    assert watched.machine.current.poll() is None


def test_a_repair_that_stopped_halfway_is_repeated(stack: ExitStack) -> None:
    """The model was unregistered, and could not be registered again."""
    watched = Watched(Machine(stack, "sequence"))
    watched.management.register_fails = True
    watched.machine.kill()
    assert watched.look(2) == ["unregister", "register"]
    watched.look()
    assert "its repair stopped halfway" in watched.said
    assert not watched.is_over
    watched.management.register_fails = False
    assert watched.look(3)[-2:] == ["unregister", "register"]
    assert watched.machine.error is None
    assert watched.look(50)[4:] == []


def test_a_watch_ends_with_its_model(watched: Watched) -> None:
    """Its operators unregistered it."""
    watched.machine.error = _MISSING
    watched.machine.kill()
    assert watched.look(3) == []
    assert "it was unregistered" in watched.said
    assert watched.is_over


def test_all_models_are_watched_until_the_server_stops(stack: ExitStack) -> None:
    """A refusal of the management API is printed once."""
    machine, echo = Machine(stack, "continuous"), io.StringIO()
    machine.error = ServerRefused("wrong key", status=400, kind="InvalidKeyException")
    guard = Guard(MachineManagement(machine), ServerLog(echo=echo))
    guard.start()
    try:
        eventually(lambda: "no repairs, the management API refuses: wrong key" in echo.getvalue())
        machine.error = None
        machine.kill()
        eventually(lambda: machine.deeds == REPAIRS["continuous"])
    finally:  # before the stack ends the processes, which the watch would replace
        guard.stop()
        guard.join(60)


@pytest.mark.parametrize(
    ("value", "on"), [(None, True), ("", True), ("true", True), ("False", False), ("0", False)]
)
def test_the_environment_turns_the_watch_off(value: str | None, on: bool) -> None:
    """By default it is on."""
    assert is_watched({} if value is None else {"TS_STATEFUL_WATCH": value}) is on


def test_the_log_of_a_server_has_lines_of_the_watch(tmp_path: Path) -> None:
    """They look like the server's own, in the file as well."""
    log = ServerLog(tmp_path / "logs" / "server.log")
    log.write("of TorchServe\n")
    log.line("of the watch")
    written = (tmp_path / "logs" / "server.log").read_text()
    assert written == str(log)
    assert written.startswith("of TorchServe\n20")
    assert written.endswith(" INFO ts_stateful.supervisor: of the watch\n")
