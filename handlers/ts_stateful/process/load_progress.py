"""The step at which an engine that loads its model is, in a file for the front and the server that wait for it."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import msgspec
from msgspec import Struct

from ts_stateful.clock import SYSTEM_CLOCK, Clock

__all__ = ["LoadProgress", "LoadStep", "read_load_step"]

logger = logging.getLogger(__name__)

_WRITE_S = 0.2  # between two writes of one step
_BAR = 20


class LoadStep(Struct, frozen=True):
    """A step of loading, begun at `began_s` of the monotonic clock; `share` of `num_bytes`, if known, is done."""

    name: str
    began_s: float
    num_bytes: int = 0
    share: float = 0.0

    def seconds(self, clock: Clock = SYSTEM_CLOCK) -> float:
        """Return how long the step has taken."""
        return max(0.0, clock.monotonic() - self.began_s)

    def in_words(self, clock: Clock = SYSTEM_CLOCK) -> str:
        """Return `loading the weights [####----] 2.7 of 13.5 GB, 12 s`, without the bar where bytes are unknown."""
        bar = ""
        if self.num_bytes:
            unit, name = (1e9, "GB") if self.num_bytes >= 1e9 else (1e6, "MB")
            total, filled = self.num_bytes / unit, round(_BAR * self.share)
            bar = f" [{'#' * filled:-<{_BAR}}] {self.share * total:.1f} of {total:.1f} {name}"
        return f"{self.name}{bar}, {self.seconds(clock):.0f} s"


class LoadProgress:
    """Implements `LoadReport` by the file at `path`; the engine removes it when it has loaded."""

    def __init__(self, path: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = path
        self._clock = clock
        self._step = LoadStep("", clock.monotonic())
        self._written_s = 0.0

    def begin(self, name: str, num_bytes: int = 0) -> None:
        """See `LoadReport`."""
        logger.info("%s", name)
        self._step = LoadStep(name, self._clock.monotonic(), num_bytes)
        self._write()

    def advance(self, share: float) -> None:
        """See `LoadReport`."""
        self._step = msgspec.structs.replace(self._step, share=min(1.0, share))
        if self._clock.monotonic() - self._written_s >= _WRITE_S:
            self._write()

    def _write(self) -> None:
        self._written_s = self._clock.monotonic()
        new = self._path.with_suffix(".loading-new")
        with contextlib.suppress(OSError):  # a full disk, which loading may survive
            new.write_bytes(msgspec.json.encode(self._step))
            new.replace(self._path)


def read_load_step(path: Path) -> LoadStep | None:
    """Return the step in a file that `LoadProgress` wrote; None if nothing is loaded."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=LoadStep)
    except (OSError, msgspec.MsgspecError):
        return None
