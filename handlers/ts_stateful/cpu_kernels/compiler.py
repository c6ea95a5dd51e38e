"""`compiler.py PID COMMAND`: a compiler whose processes end, and remove their files, with the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType

__all__: list[str] = []

_PR_SET_PDEATHSIG = 1  # of prctl(2)


def _end(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.killpg(0, number)


def _follow_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, _end)
    _follow_parent()
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
    # This process alone is killed where the time is over.
    sys.exit(subprocess.call(sys.argv[2:], preexec_fn=_follow_parent))
