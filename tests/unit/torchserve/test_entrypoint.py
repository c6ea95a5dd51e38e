"""The first process of a container, with a short program in place of TorchServe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.worker import eventually

# The program runs as TorchServe's Java and starts itself once more as an engine; both log their signals. The entrypoint
# identifies the first by its command line, the second by its name.
PROGRAM = """
import os, signal, subprocess, sys, time

log, role = sys.argv[1:]
is_server = role.endswith("ModelServer")

def note(what):
    with open(log, "a") as file:
        file.write(what + "\\n")

def end(number, frame):
    note(f"{role} {signal.Signals(number).name}")
    sys.exit(0)

parent = os.getppid()
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, end)
if is_server:
    engine = "ts-engine-0"
    subprocess.Popen([sys.executable, __file__, log, engine], start_new_session=True)
else:
    open("/proc/self/comm", "w").write(role)
note(f"{role} runs")
while is_server or os.getppid() == parent:
    if os.path.exists(f"{log}.crash") and is_server:
        sys.exit(3)
    time.sleep(0.01)
note(f"{role} has finished")
"""
TORCHSERVE = "org.pytorch.serve.ModelServer"
ENGINE = "ts-engine-0"
Run = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of both processes."""
    return tmp_path / "log"


@pytest.fixture
def run(tmp_path: Path, log: Path) -> Iterator[Run]:
    """Run a command under the entrypoint, by default a server; it and its children end with the test."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run(*command: str, **environ: str) -> subprocess.Popen[bytes]:
        server = (sys.executable, str(program), str(log), TORCHSERVE)
        process = subprocess.Popen(
            [sys.executable, "-m", "ts_stateful.torchserve.entrypoint", *(command or server)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "TS_STATEFUL_WATCH": "false",  # the program has no management API
                **environ,
            },
            start_new_session=True,
        )
        stack.enter_context(process)
        stack.callback(end, process.pid)
        return process

    def end(group: int) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(group, number)
            except ProcessLookupError:
                return

    with ExitStack() as stack:
        yield run


def noted(log: Path) -> list[str]:
    """Return the lines of the log."""
    return log.read_text().splitlines() if log.exists() else []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_engines_are_drained_before_torchserve_is_stopped(
    run: Run, log: Path, number: signal.Signals
) -> None:
    """The entrypoint exits with 0 then."""
    process = run()
    eventually(lambda: len(noted(log)) == 2)
    process.send_signal(number)
    assert process.wait() == 0
    assert noted(log)[2:] == [f"{ENGINE} SIGUSR1", f"{TORCHSERVE} SIGTERM"]


def test_the_entrypoint_waits_for_engines_after_torchserve_has_exited(run: Run, log: Path) -> None:
    """After they have finished, it exits with TorchServe's status."""
    process = run()
    eventually(lambda: len(noted(log)) == 2)
    Path(f"{log}.crash").touch()
    assert process.wait() == 3
    assert noted(log)[2:] == [f"{ENGINE} has finished"]


def test_a_command_that_has_not_started_torchserve_is_stopped(run: Run, log: Path) -> None:
    """It gets SIGTERM itself."""
    process = run("sh", "-c", f"echo up >{log}; exec sleep 1000")
    eventually(lambda: noted(log) == ["up"])
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


def test_the_status_of_a_command_is_passed_on(run: Run) -> None:
    """A killed command has the status that a shell gives it."""
    assert run("sh", "-c", "exit 5").wait() == 5
    assert run("sh", "-c", "kill -9 $$").wait() == 128 + 9


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
def test_the_temporary_folder_is_private(run: Run, log: Path, tmp_path: Path, mode: int) -> None:
    """An open one gets a folder below it, the same at the next start; a private one is used itself."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    temporary.chmod(mode)
    for _ in range(2):
        command = f'stat -c %a "$TMPDIR" >>{log} && echo "$TMPDIR" "$TEMP" "$TS_STATEFUL_RUNTIME_DIR" >>{log}'
        assert run("sh", "-c", command, TMPDIR=str(temporary)).wait() == 0
    used = temporary if mode == 0o700 else temporary / f"ts-stateful-{os.geteuid()}-tmp"
    assert noted(log) == ["700", f"{used} {used} {used}"] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_temporary_folder_that_another_user_made_is_refused(
    run: Run, log: Path, tmp_path: Path
) -> None:
    """Nothing is started."""
    (tmp_path / "tmp").mkdir()
    planted = tmp_path / "tmp" / f"ts-stateful-{os.geteuid()}-tmp"
    planted.mkdir()
    os.chown(planted, 54321, 54321)
    assert run("sh", "-c", f"echo up >{log}", TMPDIR=str(tmp_path / "tmp")).wait() == 2
    assert noted(log) == []
