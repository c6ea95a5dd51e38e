"""Draining and ending of engines before their server stops, while its ports are still open.

TorchServe itself closes all connections as soon as it receives SIGTERM. Needs neither torch nor TorchServe.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from ts_stateful.process.names import ENGINE, name_of

__all__ = [
    "descendants",
    "drain",
    "end_engines",
    "engines_in",
    "is_alive",
    "is_engine",
    "is_torchserve",
    "wait_ended",
]

_POLL_S = 0.05


def descendants(variable: str, value: str) -> Iterator[psutil.Process]:
    """Find the processes that have inherited this environment variable, whatever their parents are now."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(variable) == value:
                yield process


def is_engine(process: psutil.Process) -> bool:
    """Return True for an engine process of this package."""
    return name_of(process.pid).startswith(ENGINE)


def engines_in(folder: Path) -> list[psutil.Process]:
    """Find the engines of the server whose folder for temporary files this is."""
    found = [one for one in descendants("TMPDIR", str(folder)) if is_engine(one)]
    forked = {child.pid for one in found for child in _children(one)}  # have its name at first
    return [one for one in found if one.pid not in forked]


def _children(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return list(process.children())
    return []


def end_engines(engines: list[psutil.Process], timeout_s: float) -> None:
    """Stop engines at once, though they would exit after their server by themselves; kill those that do not."""
    for process in engines:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    wait_ended(engines, timeout_s)
    for process in engines:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def is_torchserve(process: psutil.Process) -> bool:
    """Return True for TorchServe's Java process."""
    with contextlib.suppress(psutil.Error, OSError):
        return "org.pytorch.serve.ModelServer" in process.cmdline()
    return False


def is_alive(process: psutil.Process) -> bool:
    """Return True while a process runs; False for a zombie."""
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def drain(engines: list[psutil.Process], timeout_s: float | None = None) -> None:
    """Let engines finish their work and refuse new requests; return when all have exited, each within its `drainSec`.

    They get no successors, so stop TorchServe next.
    """
    for engine in engines:
        with contextlib.suppress(psutil.Error):
            engine.send_signal(signal.SIGUSR1)
    wait_ended(engines, timeout_s)


def wait_ended(processes: list[psutil.Process], timeout_s: float | None = None) -> None:
    """Return when all processes have exited, or after `timeout_s`."""
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while any(map(is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
