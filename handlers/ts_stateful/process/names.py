"""What the processes of the plugin are called in `ps -e` and `top`, and how they are known.

A process that was forked has the command line of the one that it was forked from, so it is known by its name.
"""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

__all__ = ["ENGINE", "FORK_SERVER", "name_of", "take_name"]

ENGINE = "ts-engine"  # and the number of the engine
FORK_SERVER = "ts-fork-server"
_PR_SET_NAME = 15  # of prctl(2)


def take_name(name: str) -> None:
    """Gives this process, whose only thread this is, a name of at most 15 bytes."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


def name_of(pid: int) -> str:
    """The name of a process; empty if there is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    return ""
