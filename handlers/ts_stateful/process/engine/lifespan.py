"""The end of an engine process: TorchServe has exited, no worker has come back, or the engine drains.

In each case the engine first finishes its requests, within `drainSec`. One that still loads its model has none.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.config.schema import EngineConfig, StoreConfig
from ts_stateful.process.drain import is_alive

__all__ = ["Lifespan", "exit_soon", "exit_with"]

logger = logging.getLogger("ts_stateful.engine")

_WATCH_S = 1.0  # between two looks at the frontend and the archive
_REGISTERED_AGAIN_S = 10.0  # for the worker of a model that is registered again to attach


class Lifespan:
    """The life of an engine, as long as `frontend` (TorchServe's process) runs and a worker may come.

    TorchServe removes the folder `archive` when the model is unregistered; without it no worker can come back. A worker may
    come from another folder if the same archive is registered again.
    """

    def __init__(
        self,
        settings: EngineConfig,
        frontend: psutil.Process,
        archive: str,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._settings = settings
        self._frontend = frontend
        self._archive = archive
        self._clock = clock
        self._next_watch = 0.0
        self._detached_since: float | None = clock.monotonic()
        self._ends_at: float | None = None
        self._archive_missing_since: float | None = None
        self.frontend_exited = False

    @property
    def is_draining(self) -> bool:
        """Return True if the engine only finishes what it has."""
        return self._ends_at is not None

    def attached(self, archive: str) -> None:
        """Record that a worker is attached, whose archive is in this folder."""
        self._detached_since = self._archive_missing_since = None
        self._archive = archive

    def detached(self) -> None:
        """Record that no worker is attached from now on."""
        self._detached_since = self._clock.monotonic()

    def drain(self, reason: str) -> None:
        """Finish only what the engine has from now on. Has no effect if it drains already."""
        if self._ends_at is None:
            drain_s = self._settings.drain_sec
            logger.info("%s: the engine exits within %g s (drainSec)", reason, drain_s)
            self._ends_at = self._clock.monotonic() + drain_s

    def is_over(self, is_busy: Callable[[], bool]) -> bool:
        """Return True if it is time to exit; call this often. `is_busy` returns True while requests are unfinished."""
        now = self._clock.monotonic()
        if now >= self._next_watch:
            self._next_watch = now + _WATCH_S
            self._watch(now)
        if self._ends_at is None:
            return False
        if not is_busy():
            return True
        if now >= self._ends_at:
            logger.warning("unfinished requests are abandoned: drainSec is over")
            return True
        return False

    def _watch(self, now: float) -> None:
        if not self.frontend_exited and not is_alive(self._frontend):
            self.frontend_exited = True
            self.drain("TorchServe has exited")
        if self._detached_since is None:
            return
        if Path(self._archive).exists():
            self._archive_missing_since = None
        elif self._archive_missing_since is None:
            self._archive_missing_since = now
        elif now - self._archive_missing_since >= _REGISTERED_AGAIN_S:
            self.drain("the model is unregistered")  # the next model needs the memory
        if now - self._detached_since > self._settings.engine_linger_sec:
            self.drain("no worker has attached within engineLingerSec")


def exit_with(frontend: psutil.Process, until: threading.Event) -> None:
    """Let a thread end this process at once when TorchServe has exited, `until` the model is loaded.

    Nobody would use that model, and the next server needs its memory.
    """

    def watch() -> None:
        while not until.wait(_WATCH_S):
            if not is_alive(frontend):
                logger.error("TorchServe has exited while the model was loaded: the engine exits")
                os._exit(1)

    threading.Thread(target=watch, name="load-watch", daemon=True).start()


def exit_soon(store: StoreConfig | None) -> None:
    """End this process within one call of its store: at its exit, the interpreter waits for all that are queued."""
    if store is not None:
        timer = threading.Timer(store.timeout_sec, os._exit, (0,))
        timer.daemon = True
        timer.start()
