"""The first process of a container: what it is told to do, and in which order. Programs of a few lines stand for TorchServe."""

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

# Started as TorchServe's Java, it starts itself once more as an engine; both note what they are told. The entrypoint knows the
# one by its command line, the other by its name.
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
    """What they have noted."""
    return tmp_path / "log"


@pytest.fixture
def run(tmp_path: Path, log: Path) -> Iterator[Run]:
    """Runs a command under the entrypoint, or without one a server; it is gone in the end, and its children follow it."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run(*command: str) -> subprocess.Popen[bytes]:
        server = (sys.executable, str(program), str(log), TORCHSERVE)
        process = subprocess.Popen(
            [sys.executable, "-m", "ts_stateful.torchserve.entrypoint", *(command or server)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
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
    """The lines of the log."""
    return log.read_text().splitlines() if log.exists() else []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_engines_are_drained_before_torchserve_is_stopped(
    run: Run, log: Path, number: signal.Signals
) -> None:
    """And that was no failure."""
    process = run()
    eventually(lambda: len(noted(log)) == 2)
    process.send_signal(number)
    assert process.wait() == 0
    assert noted(log)[2:] == [f"{ENGINE} SIGUSR1", f"{TORCHSERVE} SIGTERM"]


def test_engines_that_torchserve_leaves_behind_are_waited_for(run: Run, log: Path) -> None:
    """Those of one that ended by itself: its status is the entrypoint's, once they have finished."""
    process = run()
    eventually(lambda: len(noted(log)) == 2)
    Path(f"{log}.crash").touch()
    assert process.wait() == 3
    assert noted(log)[2:] == [f"{ENGINE} has finished"]


def test_a_command_that_has_not_come_to_torchserve_is_stopped(run: Run, log: Path) -> None:
    """It is sent SIGTERM itself."""
    process = run("sh", "-c", f"echo up >{log}; exec sleep 1000")
    eventually(lambda: noted(log) == ["up"])
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


def test_the_status_of_a_command_is_passed_on(run: Run) -> None:
    """Of one that is killed as a shell would tell it; without a command there is nothing to do."""
    assert run("sh", "-c", "exit 5").wait() == 5
    assert run("sh", "-c", "kill -9 $$").wait() == 128 + 9
