"""The output of a TorchServe and of the watch over it."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import TextIO

__all__ = ["ServerLog"]

_TAIL_LINES = 60


class ServerLog:
    """The last lines in memory; all of them in `file`, if one is given, and in `echo`. A thread-safe `RepairOutput`."""

    def __init__(self, file: Path | None = None, echo: TextIO | None = None) -> None:
        self._file = file
        self._echo = echo
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return "".join(self._tail)

    def line(self, text: str = "") -> None:
        """Write a line of the watch, in the style of log4j2.xml."""
        time = datetime.now().isoformat(timespec="milliseconds").replace(".", ",")
        self.write(f"{time} watch {text}\n")

    def write(self, line: str) -> None:
        """Write a line with its end."""
        with self._lock:
            self._tail.append(line)
            # A full disk or a closed reader must not stop the server, which needs its output to be read.
            with contextlib.suppress(OSError):
                if self._file is not None:
                    self._file.parent.mkdir(parents=True, exist_ok=True)
                    with self._file.open("a", encoding="utf-8") as file:
                        file.write(line)
            with contextlib.suppress(OSError):
                if self._echo is not None:
                    self._echo.write(line)
                    self._echo.flush()
