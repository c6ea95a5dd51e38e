"""The real fork server: its reports, its lifetime, and that of its engines."""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.support.many_files import many_files
from tests.support.worker import Worker, eventually
from ts_stateful.clock import Clock
from ts_stateful.config.control_groups import ControlGroups
from ts_stateful.process.drain import is_engine
from ts_stateful.process.load_progress import read_load_step
from ts_stateful.process.spec import EngineSpec
from ts_stateful.process.worker.fork_server import (
    ForkedEngine,
    ForkServer,
    _environment,
    has_ended,
)
from ts_stateful.process.worker.supervisor import Supervisor
from ts_stateful.protocol.requests import Open

Start = Callable[..., Worker]


def spec_of(
    folder: Path,
    document: dict[str, Any],
    *,
    model_dir: Path | None = None,
    device: str = "cpu",
    frontend_pid: int | None = None,
) -> EngineSpec:
    """Make the spec of an engine that ends with a process, this one if there is no other."""
    return EngineSpec(
        index=0,
        device=device,
        model_name="m",
        model_dir=str(model_dir or folder),
        frontend_pid=frontend_pid or os.getpid(),
        folder=str(folder),
        max_sessions=1,
        document=document,
    )


def forked(fork_server: ForkServer, spec: EngineSpec) -> ForkedEngine:
    """Fork an engine as a supervisor does."""
    with spec.path("lock").open("w") as lock, spec.path("log").open("ab") as log:
        return fork_server.fork(spec, lock, log)


def engines(spec: EngineSpec) -> list[psutil.Process]:
    """Find the engines of a spec, which hold its lock."""
    lock, found = str(spec.path("lock")), []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # engines of other tests may exit meanwhile
            if is_engine(one) and lock in [file.path for file in one.open_files()]:
                found.append(one)
    return found


def counter(repository: Path) -> dict[str, Any]:
    """Return the settings of an example that loads quickly."""
    folder = repository / "examples/counter"
    document = yaml.safe_load((folder / "model-config.yaml").read_text())
    return {"model_dir": folder / "model", **document["handler"]}


@pytest.fixture
def frontend() -> Iterator[subprocess.Popen[bytes]]:
    """A process that engines end with."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


class FastClock(Clock):
    """A clock on which waits take a hundred times as long."""

    def monotonic(self) -> float:
        """See `Clock`."""
        return 100 * super().monotonic()


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_an_engine_that_cannot_start_logs_the_reason(
    fork_server: ForkServer, tmp_path: Path, device: str
) -> None:
    """It exits with a status, and the next one is forked all the same."""
    spec = spec_of(tmp_path, {"handler": {"modle": "x"}}, device=device)
    for times in (1, 2):
        engine = forked(fork_server, spec)
        eventually(engine.has_ended)
        assert engine.status == 1
        assert spec.path("log").read_text().count("modle") >= times


def test_a_worker_of_many_connections_starts_engines(start: Start, repository: Path) -> None:
    """The numbers of its sockets are above those that `select` accepts, and the fork server inherits them."""
    with many_files():
        worker = start(fork_server=None, **counter(repository))
        worker.ask(Open(session_id="s"), creates_session=True)


def test_an_engine_outlives_its_fork_server(start: Start, repository: Path) -> None:
    """If the engine is killed then, another fork server forks its successor."""
    worker = start(fork_server=None, **counter(repository))
    pid = worker.engine_pid()
    parent = psutil.Process(pid).ppid()
    os.kill(parent, signal.SIGKILL)
    eventually(lambda: has_ended(parent))
    worker.ask(Open(session_id="s"), creates_session=True)
    assert worker.engine_pid() == pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: worker.engine_pid() not in (0, pid))
    worker.ask(Open(session_id="t"), creates_session=True)


def test_a_worker_that_finds_its_engine_prepares_for_the_next_one(
    start: Start, repository: Path
) -> None:
    """Its fork server starts before it is needed."""
    worker = start(**counter(repository))
    pid = worker.engine_pid()
    worker.dispatcher.close()
    before = set(psutil.Process().children())
    successor = start(fork_server=None, **counter(repository))
    (fork_server,) = set(psutil.Process().children()) - before
    assert successor.engine_pid() == pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: successor.engine_pid() not in (0, pid))
    assert psutil.Process(successor.engine_pid()).ppid() == fork_server.pid


def test_an_engine_that_still_loads_exits_with_its_frontend(
    fork_server: ForkServer, frontend: subprocess.Popen[bytes], repository: Path, tmp_path: Path
) -> None:
    """Its model, which never ends loading, would keep its memory from the next server's."""
    example = counter(repository)
    del example["model_dir"]
    (tmp_path / "counter.py").write_text("import threading\nthreading.Event().wait()")
    spec = spec_of(tmp_path, {"handler": example}, model_dir=tmp_path, frontend_pid=frontend.pid)
    engine = forked(fork_server, spec)

    def loads() -> bool:
        step = read_load_step(spec.path("loading"))
        return step is not None and step.name == "loading the program"

    eventually(loads)
    frontend.kill()
    eventually(engine.has_ended)
    assert "TorchServe has exited" in spec.path("log").read_text()


def test_a_fork_server_that_hangs_is_replaced(repository: Path, tmp_path: Path) -> None:
    """A fork server hangs if it does not report the exit of an engine."""
    example = counter(repository)
    spec = spec_of(tmp_path, {"handler": example}, model_dir=example.pop("model_dir"))
    with closing(ForkServer()) as fork_server:
        supervisor = Supervisor(spec, 1e6, fork_server, FastClock())
        supervisor.connect().close()
        (engine,) = engines(spec)
        engine.parent().suspend()
        engine.kill()
        supervisor.lost()
        supervisor.connect().close()
        (successor,) = engines(spec)
        assert successor != engine
        supervisor.lost()


def test_the_log_names_a_containers_limit_of_memory(
    repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody in a container reads the kernel's log. Status -9 alone is that of an engine that hung, too.

    Another status has another cause, though the kernel may have killed another engine of the container.
    """
    example = counter(repository)
    spec = spec_of(tmp_path, {"handler": example}, model_dir=example.pop("model_dir"))
    (tmp_path / "own").write_text("0::/")
    groups = ControlGroups(tmp_path, tmp_path / "own")
    with closing(ForkServer()) as fork_server:
        supervisor = Supervisor(spec, 1e6, fork_server, FastClock(), groups)
        for num_killed, number, is_named in (
            (0, signal.SIGKILL, False),
            (1, signal.SIGKILL, True),
            (1, signal.SIGKILL, False),
            (2, signal.SIGALRM, False),
        ):
            caplog.clear()
            with supervisor.connect() as connection:
                engine = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid = int.from_bytes(engine[:4], sys.byteorder)
            (tmp_path / "memory.events").write_text(f"oom_kill {num_killed}")
            os.kill(pid, number)
            eventually(partial(has_ended, pid))
            supervisor.lost()
            assert f"status {-number}" in caplog.text
            assert ("limit of memory" in caplog.text) == is_named


def test_a_fork_server_survives_a_missing_spec(tmp_path: Path) -> None:
    """An engine may have removed its folder before the server reads its spec. The next one is forked all the same."""
    gone, there = (spec_of(tmp_path / name, {"handler": {"modle": "x"}}) for name in ("a", "b"))
    for spec in (gone, there):
        Path(spec.folder).mkdir()
    with closing(ForkServer()) as fork_server, (tmp_path / "log").open("ab") as log:
        before = set(psutil.Process().children())
        fork_server.prepare(gone, log)
        (process,) = set(psutil.Process().children()) - before
        process.suspend()
        gone.path("json").unlink()
        engine = forked(fork_server, there)
        process.resume()
        eventually(engine.has_ended)
        assert engine.status == 1
        assert "modle" in there.path("log").read_text()


def test_an_engine_that_was_never_forked_has_ended(tmp_path: Path) -> None:
    """Its fork server was killed first."""
    fork_server = ForkServer()
    engine = forked(fork_server, spec_of(tmp_path, {}))
    fork_server.close()
    eventually(engine.has_ended)


def test_a_process_has_not_ended_before_its_last_thread() -> None:
    """Its main thread may be a zombie while another one still has the files open."""
    end_thread = {"x86_64": 60, "aarch64": 93}[platform.machine()]  # the system call `exit`
    script = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start();"
        f"ctypes.CDLL(None).syscall({end_thread}, 0)"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
        assert not has_ended(process.pid)
        process.kill()
        eventually(lambda: has_ended(process.pid))


def test_a_fork_server_ends_with_its_worker() -> None:
    """It ends when the socket between them closes, so however the worker exits."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "ts_stateful.process.worker.fork_server", str(theirs.fileno())]
    with ours, theirs:
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
    assert process.wait() == 0


def test_engines_keep_their_docstrings() -> None:
    """A model of transformers is made from them, which a worker may run without."""
    assert _environment({"PYTHONOPTIMIZE": "2"})["PYTHONOPTIMIZE"] == ""


# An import that never ends, in place of one that takes seconds.
_IMPORTING = """
import socket, sys, threading
from ts_stateful.process.worker.fork_server import _ending_with

with socket.socket(fileno=int(sys.argv[1])) as control:
    with _ending_with(control):
        pass
    control.send(b"imported")
    with _ending_with(control):
        control.send(b"imports")
        threading.Event().wait()
"""


def test_a_fork_server_ends_with_its_worker_while_it_imports() -> None:
    """The next worker needs the processor; a message of the worker's changes nothing."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        command = [sys.executable, "-c", _IMPORTING, str(theirs.fileno())]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()]) as server:
            theirs.close()
            assert [ours.recv(100), ours.recv(100)] == [b"imported", b"imports"]
            ours.send(b"spec")
            assert server.poll() is None
            ours.close()
            assert server.wait(60) == 0
