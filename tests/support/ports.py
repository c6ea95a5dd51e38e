"""Ports for the servers of tests, which nobody else takes between their choice and their use.

What the kernel names is free again until somebody listens there, which takes a server seconds, and a server that is stopped for
a while wants its own back: meanwhile the kernel may name it to another test, or connect from it. So these are below those that
the kernel names, and a port is locked for as long as the process lives that has chosen it: all tests of this machine see that.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO

from ts_stateful.serving.ports import Ports

__all__ = ["free_port", "free_ports"]

_CANDIDATES = iter(range(20_000, 32_000))  # the kernel's begin at 32768
_locks: list[IO[str]] = []


def free_port() -> int:
    """One on the loopback address."""
    return next(port for port in _CANDIDATES if _locked(port) and not Ports(http=port).taken())


def free_ports() -> Ports:
    """All that a TorchServe needs."""
    return Ports(*(free_port() for _ in range(5)))


def _locked(port: int) -> bool:
    folder = Path(tempfile.gettempdir(), f"ts-test-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    lock = (folder / str(port)).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return False
    _locks.append(lock)
    return True
