"""The output of a server and of its supervision."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.process.logs import make_formatter

__all__ = ["ServerLog"]

_TAIL_LINES = 60
_STATUS_S = 5.0
_LOGGER = "ts_stateful.supervisor"


class ServerLog:
    """The last lines in memory; all of them in `file`, if one is given, and in `echo`. A thread-safe `RepairOutput`."""

    def __init__(
        self,
        file: Path | None = None,
        echo: TextIO | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._format = make_formatter("supervisor", environ).format
        self._file = file
        self._echo = echo
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._lock = threading.Lock()
        self._clock = clock
        self._live = ""  # the last line of a terminal, below the others
        self._status_s = clock.monotonic()

    def __str__(self) -> str:
        return "".join(self._tail)

    def line(self, text: str = "") -> None:
        """Write a line of the supervision, in the format of the server's own."""
        record = {"name": _LOGGER, "levelno": logging.INFO, "levelname": "INFO", "msg": text}
        self.write(f"{self._format(logging.makeLogRecord(record))}\n")

    def status(self, text: str) -> None:
        """Show the present state: in place if `echo` is a terminal, else as a line every few seconds; "" ends it."""
        if self._echo is None:
            return
        if self._echo.isatty():
            live = text[: shutil.get_terminal_size().columns - 1]
            with self._lock, contextlib.suppress(OSError):
                if live != self._live:
                    self._live = live
                    self._echo.write(f"\r\x1b[K{live}")
                    self._echo.flush()
        elif text and self._clock.monotonic() - self._status_s >= _STATUS_S:
            self._status_s = self._clock.monotonic()
            self.line(text)

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
                    self._echo.write(f"\r\x1b[K{line}{self._live}" if self._live else line)
                    self._echo.flush()
