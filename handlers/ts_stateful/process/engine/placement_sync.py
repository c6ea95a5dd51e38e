"""Where sessions are, for all workers that share an engine: each knows it before anybody hears that one is here.

Owns what is held back until then, so that a client which goes on through another worker is not sent to another engine. Knows
neither sessions nor what events mean. For the thread of the engine alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ts_stateful.process.channel import Channel
from ts_stateful.process.messages import SessionPlaced
from ts_stateful.protocol.events import Event

__all__ = ["PlacementSync"]

_PATIENCE_S = 1.0  # with a worker that hangs


@dataclass
class _Announced:
    missing: set[Channel]
    until: float
    events: list[Event] = field(default_factory=list)


class PlacementSync:
    """Requests for sessions that are new here; what is emitted for them goes to `deliver` when the other workers know."""

    def __init__(
        self, deliver: Callable[[Event], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._deliver = deliver
        self._clock = clock
        self._announced: dict[str, _Announced] = {}  # by request

    def announce(
        self, request_id: str, session_ids: tuple[str, ...], others: Collection[Channel]
    ) -> None:
        """Tells the other workers; nothing is delivered for the request until they have heard."""
        for other in others:
            other.send(SessionPlaced(request_id, session_ids))
        self._announced[request_id] = _Announced(set(others), self._clock() + _PATIENCE_S)

    def heard(self, request_id: str, channel: Channel) -> None:
        """One of them knows."""
        announced = self._announced.get(request_id)
        if announced is not None:
            announced.missing.discard(channel)
            self.release()

    def left(self, channel: Channel) -> None:
        """One of them has gone, and need not know."""
        for announced in self._announced.values():
            announced.missing.discard(channel)
        self.release()

    def emit(self, event: Event) -> None:
        """Delivers an event, or keeps it for a moment."""
        announced = self._announced.get(event.request_id)
        if announced is None:
            self._deliver(event)
        else:
            announced.events.append(event)

    def release(self) -> None:
        """Delivers what everybody may hear of by now; to be called every now and then."""
        if not self._announced:
            return
        now = self._clock()
        for request_id, announced in list(self._announced.items()):
            if not announced.missing or now >= announced.until:
                del self._announced[request_id]
                for event in announced.events:
                    self._deliver(event)
