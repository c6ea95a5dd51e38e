"""The surroundings of an engine: where its events go, its thread's queue, the time, a store."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.protocol.events import Event
from ts_stateful.store.ordered_calls import StoreCalls

__all__ = ["EventSink", "Placement", "Services", "WorkQueue"]


class EventSink(Protocol):
    """The receiver of an engine's events."""

    def emit(self, event: Event) -> None:
        """Take an event; called by the engine's thread."""
        ...


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
    """The surroundings that a process gives its engine. Without `store`, sessions end with the engine."""

    events: EventSink
    queue: WorkQueue
    clock: Clock = SYSTEM_CLOCK
    store: StoreCalls | None = None


@dataclass(frozen=True)
class Placement:
    """The model that an engine runs: its folder, its name in answers, its device, and the engine's share of sessions."""

    model_dir: str
    model_name: str
    device: str
    max_sessions: int | None = None
