"""Engines before their TorchServe is stopped: they finish what they have begun, while its ports still are open.

TorchServe itself breaks every connection off as soon as it gets SIGTERM. Owns how engine processes are found and told; needs
neither torch nor TorchServe.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterator

import psutil

from ts_stateful.process.names import ENGINE, name_of

__all__ = ["descendants", "drain", "is_engine", "is_torchserve", "wait_ended"]

_POLL_S = 0.05


def descendants(variable: str, value: str) -> Iterator[psutil.Process]:
    """Processes that have inherited this environment variable, whoever their parents are by now."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(variable) == value:
                yield process


def is_engine(process: psutil.Process) -> bool:
    """Whether it is one of our engine processes."""
    return name_of(process.pid).startswith(ENGINE)


def is_torchserve(process: psutil.Process) -> bool:
    """Whether it is TorchServe's Java."""
    with contextlib.suppress(psutil.Error, OSError):
        return "org.pytorch.serve.ModelServer" in process.cmdline()
    return False


def drain(engines: list[psutil.Process], timeout_s: float | None = None) -> None:
    """Has engines finish what runs and refuse what comes; returns when all have ended, each within its `drainSec`.

    There will be no others in their place, so TorchServe has to be stopped next.
    """
    for engine in engines:
        with contextlib.suppress(psutil.Error):
            engine.send_signal(signal.SIGUSR1)
    wait_ended(engines, timeout_s)


def wait_ended(processes: list[psutil.Process], timeout_s: float | None = None) -> None:
    """Returns when all have ended, or after `timeout_s`. Zombies have."""
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while any(map(_lives, processes)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
