"""`python -m tests.fuzz`."""

import signal
import sys
from types import FrameType

from tests.fuzz.cli import main


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # the server is stopped on the way out


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(main())
