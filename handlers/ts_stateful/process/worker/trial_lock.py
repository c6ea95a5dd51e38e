"""Who may send requests to an engine: several workers at once, or one of them alone.

Owns the locks by which workers that share an engine keep out of each other's trials: while one tries a request that may be what
engines die of, nothing else may be in the engine. The kernel takes a lock back when its worker dies. Nothing here blocks.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from ts_stateful.process.spec import EngineSpec

__all__ = ["SharedTrialLock", "TrialLock", "trial_lock_of"]


class TrialLock:
    """The gate to an engine that one worker uses: always open."""

    is_alone = True

    def enter(self, *, alone: bool) -> bool:
        """Whether a request may be sent now; `alone`: while no other worker has one in the engine."""
        return True

    def leave(self) -> None:
        """The worker has no request in the engine, and waits for no trial."""

    def close(self) -> None:
        """The worker has no use for the engine any more."""


class SharedTrialLock(TrialLock):
    """The gate to an engine that several workers use, each with one of these over the same two files.

    Who has requests in the engine holds `inside` together with others; who tries one holds it alone. Who waits for that holds
    `queue`, and nobody else sends anything new meanwhile: so what is in the engine comes to its end, and the trial to its turn.
    """

    def __init__(self, inside: Path, queue: Path) -> None:
        self._inside, self._queue = inside.open("w"), queue.open("w")
        self.is_alone = False

    def enter(self, *, alone: bool) -> bool:
        """See `TrialLock`."""
        if self._inside.closed:
            return False
        if alone and self.is_alone:
            return True
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        entered = _lock(self._queue, kind) and _lock(self._inside, kind)
        if entered and not alone:
            fcntl.flock(self._queue, fcntl.LOCK_UN)
        self.is_alone = entered and alone
        return entered

    def leave(self) -> None:
        """See `TrialLock`."""
        self.is_alone = False
        for file in (self._inside, self._queue):
            if not file.closed:
                fcntl.flock(file, fcntl.LOCK_UN)

    def close(self) -> None:
        """See `TrialLock`."""
        self.is_alone = False
        self._inside.close()
        self._queue.close()


def trial_lock_of(spec: EngineSpec) -> TrialLock:
    """The gate to an engine, for one worker."""
    return SharedTrialLock(spec.path("inside"), spec.path("queue")) if spec.shared else TrialLock()


def _lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
