"""Locks of workers that share an engine, so that one of them can try a request there alone.

While a worker tries a request that may crash engines, no other request may be in the engine. The kernel releases a lock when
its worker dies. Nothing here blocks.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from ts_stateful.process.spec import EngineSpec

__all__ = ["SharedTrialLock", "TrialLock", "trial_lock_of"]


class TrialLock:
    """The lock of an engine that only one worker uses, which always gets it."""

    is_exclusive = True

    def acquire(self, *, exclusive: bool) -> bool:
        """Return True if a request may be sent now; if `exclusive`, only while no other worker has one in the engine."""
        return True

    def release(self) -> None:
        """Let other workers acquire the lock: this one has no request in the engine and tries none."""

    def close(self) -> None:
        """Release the lock for good."""


class SharedTrialLock(TrialLock):
    """The lock of an engine that several workers use. Each worker has one, over the same two files.

    A worker with requests in the engine holds `inside`, shared; one that tries a request holds it exclusively. A worker that
    waits for a trial holds `queue`, which stops all new requests. So the engine becomes idle, and the trial begins.
    """

    def __init__(self, inside: Path, queue: Path) -> None:
        self._inside, self._queue = inside.open("w"), queue.open("w")
        self.is_exclusive = False

    def acquire(self, *, exclusive: bool) -> bool:
        """See `TrialLock`."""
        if self._inside.closed:
            return False
        if exclusive and self.is_exclusive:
            return True
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        acquired = _lock(self._queue, kind) and _lock(self._inside, kind)
        if acquired and not exclusive:
            fcntl.flock(self._queue, fcntl.LOCK_UN)
        self.is_exclusive = acquired and exclusive
        return acquired

    def release(self) -> None:
        """See `TrialLock`."""
        self.is_exclusive = False
        for file in (self._inside, self._queue):
            if not file.closed:
                fcntl.flock(file, fcntl.LOCK_UN)

    def close(self) -> None:
        """See `TrialLock`."""
        self.is_exclusive = False
        self._inside.close()
        self._queue.close()


def trial_lock_of(spec: EngineSpec) -> TrialLock:
    """Open one worker's lock of an engine."""
    return SharedTrialLock(spec.path("inside"), spec.path("queue")) if spec.shared else TrialLock()


def _lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
