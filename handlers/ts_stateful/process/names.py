"""Names of the plugin's processes in `ps -e` and `top`.

A forked process has the command line of its parent, so only its name identifies it.
"""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

__all__ = ["ENGINE", "FOLLOWER", "FORK_SERVER", "name_of", "take_name"]

ENGINE = "ts-engine"  # followed by the number of the engine
FOLLOWER = "ts-rank"  # followed by the numbers of the engine and of the rank
FORK_SERVER = "ts-fork-server"
_PR_SET_NAME = 15  # of prctl(2)


def take_name(name: str) -> None:
    """Name this process, with at most 15 bytes; call it from the only thread."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


def name_of(pid: int) -> str:
    """Return the name of a process; empty if there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    return ""
