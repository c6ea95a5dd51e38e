"""Makes an environment and installs this package into it, with its progress: `make setup`, `make serve`.

It runs before anything is installed, so it needs nothing but Python.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path
from typing import TextIO

_TICK_S = 0.5
_QUIET_S = 10.0  # between two lines where the output is not a terminal
_NAME = re.compile(r"(?:Collecting|Processing|Requirement already satisfied:) ([\w./-]+)")
_SIZE = re.compile(r"Downloading \S+ \(([\d.]+) (kB|MB|GB)\)")
_UNITS_MB = {"kB": 0.001, "MB": 1.0, "GB": 1000.0}
_TOTAL = re.compile(r"Installing collected packages: (.+)")
_STEPS = 3


class Progress:
    """The present step with its seconds: a live line on a terminal, else a line now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._step = 0
        self._text = ""
        self._began = self._shown = 0.0
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._ticks = threading.Thread(target=self._tick, daemon=True)
        self._ticks.start()

    def step(self, text: str) -> None:
        """Begin the next step."""
        with self._lock:
            self._end()
            self._step, self._text = self._step + 1, text
            self._began = time.monotonic()
            self._show(self._began)

    def detail(self, text: str) -> None:
        """Change the text of the present step; it is shown with the next tick."""
        with self._lock:
            self._text = text

    def close(self) -> None:
        """End the last step."""
        self._done.set()
        self._ticks.join()
        with self._lock:
            self._end()

    def _tick(self) -> None:
        while not self._done.wait(_TICK_S):
            now = time.monotonic()
            with self._lock:
                if self._step and (self._stream.isatty() or now - self._shown >= _QUIET_S):
                    self._show(now)

    def _show(self, now: float, end: str = "") -> None:
        line = f"[{self._step}/{_STEPS}] {self._text}, {now - self._began:.0f} s"
        self._stream.write(f"\r\x1b[K{line}{end}" if self._stream.isatty() else f"{line}\n")
        self._stream.flush()
        self._shown = now

    def _end(self) -> None:
        if self._step:
            self._show(time.monotonic(), "\n")


class PipOutput:
    """What pip reports in its lines."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._names: set[str] = set()
        self._mb = 0.0

    def line(self, line: str) -> None:
        """Take a line of pip's output."""
        text = line.strip()
        if found := _NAME.match(text):
            self._names.add(found[1].lower())
        elif found := _SIZE.match(text):
            self._mb += float(found[1]) * _UNITS_MB[found[2]]
        elif found := _TOTAL.match(text):
            total = len(found[1].split(","))
            self._progress.step(f"installing {total} packages")
            return
        else:
            return
        self._progress.detail(f"fetching: {len(self._names)} packages, {self._mb:,.0f} MB")


def install(folder: Path, extras: str, progress: Progress) -> str | None:
    """Make the environment in `folder` and install; return pip's output if it fails."""
    progress.step(f"making {folder}")
    venv.create(folder, with_pip=True, symlinks=True)
    progress.step("fetching")
    command = [
        str(folder / "bin/python"),
        "-u",
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
    ]
    command += ["--progress-bar", "off", "--no-compile", "-c", "constraints.txt"]
    command += ["-e", f".[{extras}]"]
    said: list[str] = []
    output = PipOutput(progress)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            said.append(line)
            output.line(line)
    return "".join(said) if pip.returncode else None


def main() -> int:
    """Install; return 1, with pip's output on standard error, if that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("extras")
    options = parser.parse_args()
    progress = Progress(sys.stderr)
    try:
        failure = install(options.folder, options.extras, progress)
    finally:
        progress.close()
    if failure is not None:
        sys.stderr.write(failure)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
