"""The benchmark's progress: a line for each stage and a bar within it; on a terminal only, the bars."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from tqdm import tqdm

__all__ = ["Progress"]

_BAR = "  {bar:24} {n_fmt}/{total_fmt}  {elapsed}<{remaining}  {desc}"


class Progress:
    """The progress of several stages, one shown at a time; a context manager around each stage."""

    def __init__(self, num_stages: int, output: TextIO = sys.stderr) -> None:
        self._num_stages = num_stages
        self._output = output
        self._number = 0
        self._began_at = 0.0
        self._bar: tqdm[None] | None = None

    def stage(self, title: str) -> Progress:
        """Begin the next stage."""
        self._number += 1
        self._began_at = time.monotonic()
        self.say(f"[{self._number}/{self._num_stages}] {title}")
        return self

    def expect(self, steps: int) -> None:
        """Set the stage's number of steps."""
        self._close()
        self._bar = tqdm(
            total=steps,
            file=self._output,
            bar_format=_BAR,
            leave=False,
            disable=not self._output.isatty(),
        )

    def step(self, name: str) -> None:
        """Count one step as done."""
        if self._bar is not None:
            self._bar.set_description_str(name, refresh=False)
            self._bar.update()

    def skip(self, steps: int) -> None:
        """Remove so many steps that will not be done."""
        if self._bar is not None and self._bar.total is not None:
            self._bar.total -= steps
            self._bar.refresh()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        tqdm.write(line, file=self._output)
        self._output.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()
        if error is None:
            self.say(f"      {time.monotonic() - self._began_at:.0f} s")

    def _close(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()
