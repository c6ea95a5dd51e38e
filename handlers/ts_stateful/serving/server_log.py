"""The output of a server and of its supervision."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from ts_stateful.process.logs import make_formatter

__all__ = ["ServerLog"]

_TAIL_LINES = 60
_LOGGER = "ts_stateful.supervisor"


class ServerLog:
    """The last lines in memory; all of them in `file`, if one is given, and in `echo`. A thread-safe `RepairOutput`."""

    def __init__(
        self,
        file: Path | None = None,
        echo: TextIO | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._format = make_formatter("supervisor", environ).format
        self._file = file
        self._echo = echo
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return "".join(self._tail)

    def line(self, text: str = "") -> None:
        """Write a line of the supervision, in the format of the server's own."""
        record = {"name": _LOGGER, "levelno": logging.INFO, "levelname": "INFO", "msg": text}
        self.write(f"{self._format(logging.makeLogRecord(record))}\n")

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
