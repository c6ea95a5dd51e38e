"""`python -m benchmarks`."""

import signal
import sys
from types import FrameType

from benchmarks.own_process import OwnProcess


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # stop the started servers on exit


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    OwnProcess.prepare("benchmarks.rig")
    try:
        from benchmarks.cli import main  # takes as long, at the same time

        sys.exit(main())
    except KeyboardInterrupt:  # the servers have stopped
        sys.stderr.write("stopped before the end: no results were written\n")
        sys.exit(130)
