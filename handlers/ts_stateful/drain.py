"""Engines before their TorchServe is stopped: they finish what they have begun, while its ports still are open.

TorchServe itself breaks every connection off as soon as it gets SIGTERM. Owns how engine processes are found and told; needs
neither torch nor TorchServe.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import psutil

__all__ = ["descendants", "drain", "is_engine", "is_torchserve"]


def descendants(variable: str, value: str) -> Iterator[psutil.Process]:
    """Processes that have inherited this environment variable, whoever their parents are by now."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(variable) == value:
                yield process


def is_engine(process: psutil.Process) -> bool:
    """Whether it is one of our engine processes."""
    return _runs(process, "ts_stateful.process.engine_main")


def is_torchserve(process: psutil.Process) -> bool:
    """Whether it is TorchServe's Java."""
    return _runs(process, "org.pytorch.serve.ModelServer")


def drain(engines: list[psutil.Process], timeout_s: float | None = None) -> None:
    """Has engines finish what runs and refuse what comes; returns when all have ended, each within its `drainSec`.

    There will be no others in their place, so TorchServe has to be stopped next.
    """
    for engine in engines:
        with contextlib.suppress(psutil.Error):
            engine.send_signal(signal.SIGUSR1)
    psutil.wait_procs(engines, timeout=timeout_s)


def _runs(process: psutil.Process, name: str) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return name in process.cmdline()
    return False
