"""The surroundings of an engine: where its events go, its thread's queue, the time, a store."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.protocol.events import Event
from ts_stateful.store.ordered_calls import StoreCalls

__all__ = [
    "NO_REPORT",
    "DriverLink",
    "EventSink",
    "Followers",
    "LoadReport",
    "Placement",
    "Ranks",
    "Services",
    "WorkQueue",
]


class EventSink(Protocol):
    """The receiver of an engine's events."""

    def emit(self, event: Event) -> None:
        """Take an event; called by the engine's thread."""


class Followers(Protocol):
    """The processes of an engine's further ranks, which do the same work on other parts of the model."""

    def send(self, message: bytes) -> None:
        """Send a message to each of them; they do its work in the order of messages."""

    def failed(self) -> None:
        """Return when the work of the last message, which failed here, has failed in each of them; else end the engine."""


class DriverLink(Protocol):
    """The driver, as a follower sees it."""

    def receive(self) -> bytes | None:
        """Wait for the next message; return None after the driver has exited."""

    def report_failure(self) -> None:
        """Report that the work of the last message failed."""


class LoadReport(Protocol):
    """The progress of loading a model."""

    def begin(self, name: str, num_bytes: int = 0) -> None:
        """Begin the next step, which reads `num_bytes` if they are known."""

    def advance(self, share: float) -> None:
        """Set the share of the step that is done, from 0 to 1."""


class _NoReport:
    def begin(self, name: str, num_bytes: int = 0) -> None:
        pass

    def advance(self, share: float) -> None:
        pass


NO_REPORT: Final[LoadReport] = _NoReport()
"""For loading that nothing waits for."""


class WorkQueue:
    """Actions that other threads want done on the engine's thread, in their order."""

    def __init__(self) -> None:
        self._actions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def put(self, action: Callable[[], None]) -> None:
        """Add an action; for any thread, and for signal handlers."""
        self._actions.put(action)

    def run_next(self, patience_s: float = 0.0) -> bool:
        """Do the next action; return False if there was none for `patience_s` seconds."""
        try:
            action = (
                self._actions.get(timeout=patience_s) if patience_s else self._actions.get_nowait()
            )
        except queue.Empty:
            return False
        action()
        return True

    def run(self, patience_s: float = 0.0) -> None:
        """Do all there is; wait for the first action for at most `patience_s` seconds."""
        if self.run_next(patience_s):
            while self.run_next():
                pass


@dataclass(frozen=True)
class Services:
    """The surroundings that a process gives its engine.

    Without `store`, sessions end with the engine. `followers` are there if the model is split.
    """

    events: EventSink
    queue: WorkQueue
    clock: Clock = SYSTEM_CLOCK
    store: StoreCalls | None = None
    followers: Followers | None = None
    progress: LoadReport = NO_REPORT


@dataclass(frozen=True)
class Ranks:
    """The ranks of an engine whose model is split: the `number` of this process, 0 for the driver, among `count`.

    They find one another by the file `meeting`.
    """

    number: int
    count: int
    meeting: str


@dataclass(frozen=True)
class Placement:
    """The model that an engine runs: its folder, its name in answers, its device, and the engine's share of sessions.

    `ranks` is None unless the model is split over several devices, of which `device` is that of this process.
    """

    model_dir: str
    model_name: str
    device: str
    max_sessions: int | None = None
    ranks: Ranks | None = None
