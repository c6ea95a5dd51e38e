"""When an engine process ends.

Owns the reasons to end: TorchServe has gone, no worker has come back, or the process was told to. In each case what runs is
finished first, for `drainSec` at most. Knows nothing of engines: it is told whether there is something left to finish.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from ts_stateful.config.schema import EngineConfig

__all__ = ["Lifespan"]

logger = logging.getLogger("ts_stateful.engine")

_WATCH_S = 1.0  # how often the frontend is looked after
_REGISTERED_AGAIN_S = 10.0  # until the worker of a model that is registered again is there


class Lifespan:
    """How long an engine lives. `frontend_pid` is TorchServe's process; `clock` and `is_alive` are seams for tests.

    `archive` is the folder without which no worker can come back: TorchServe removes it when the model is unregistered. A
    worker can come from another folder, if the same archive is registered again.
    """

    def __init__(
        self,
        settings: EngineConfig,
        frontend_pid: int,
        clock: Callable[[], float] = time.monotonic,
        is_alive: Callable[[psutil.Process], bool] | None = None,
        archive: str | None = None,
    ) -> None:
        self._settings = settings
        self._frontend = psutil.Process(frontend_pid)
        self._clock = clock
        self._is_alive = is_alive or _is_alive
        self._archive = archive
        self._next_watch = 0.0
        self._alone_since: float | None = clock()
        self._ends_at: float | None = None
        self._missed_since: float | None = None  # the archive
        self.frontend_gone = False

    @property
    def is_draining(self) -> bool:
        """Whether the engine finishes what it has, and takes up nothing new."""
        return self._ends_at is not None

    def attached(self, archive: str | None) -> None:
        """There is a worker, for which the archive is there."""
        self._alone_since = self._missed_since = None
        self._archive = archive

    def alone(self) -> None:
        """There is none any more, or not yet."""
        self._alone_since = self._clock()

    def leave(self, reason: str) -> None:
        """From now on the engine only finishes what it has. Called again, it changes nothing."""
        if self._ends_at is None:
            drain_s = self._settings.drain_sec
            logger.info("%s: the engine ends, within %g s (drainSec)", reason, drain_s)
            self._ends_at = self._clock() + drain_s

    def is_over(self, is_busy: Callable[[], bool]) -> bool:
        """Whether it is time to end; to be asked again and again. `is_busy` says whether something is left to finish."""
        now = self._clock()
        if now >= self._next_watch:
            self._next_watch = now + _WATCH_S
            self._watch(now)
        if self._ends_at is None:
            return False
        if not is_busy():
            return True
        if now >= self._ends_at:
            logger.warning("what still runs is given up")
            return True
        return False

    def _watch(self, now: float) -> None:
        if not self.frontend_gone and not self._is_alive(self._frontend):
            self.frontend_gone = True
            self.leave("TorchServe is gone")
        if self._alone_since is None:
            return
        is_missed = self._archive is not None and not Path(self._archive).exists()
        if not is_missed:
            self._missed_since = None
        elif self._missed_since is None:
            self._missed_since = now
        elif now - self._missed_since >= _REGISTERED_AGAIN_S:
            self.leave("the model is not registered any more")  # or the next one finds no room
        if now - self._alone_since > self._settings.engine_linger_sec:
            self.leave("no worker has come back")


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
