"""Agreement of the workers that share an engine about the sessions that it has.

Events of a new session are held until all other workers have recorded its place. So a client that goes on through another
worker reaches the same engine. For the engine's thread only.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.process.channel import Channel
from ts_stateful.process.messages import SessionPlaced
from ts_stateful.protocol.events import Event

__all__ = ["EventOutlet", "PlacementSync"]

_ACK_S = 1.0  # that a worker which hangs can delay events


class EventOutlet(Protocol):
    """The way of events to the workers."""

    def deliver(self, event: Event) -> None:
        """Send an event to the worker that owns its request."""


@dataclass
class _Placement:
    unacknowledged: set[Channel]
    deadline: float
    held: list[Event] = field(default_factory=list)


class PlacementSync:
    """Requests that create sessions; their events go to `outlet` after the other workers have acknowledged the sessions."""

    def __init__(self, outlet: EventOutlet, clock: Clock = SYSTEM_CLOCK) -> None:
        self._outlet = outlet
        self._clock = clock
        self._placements: dict[str, _Placement] = {}  # by request

    def place(
        self, request_id: str, session_ids: tuple[str, ...], peers: Collection[Channel]
    ) -> None:
        """Send the place of these sessions to the other workers; hold the request's events until they acknowledge it."""
        for peer in peers:
            peer.send(SessionPlaced(request_id, session_ids))
        deadline = self._clock.monotonic() + _ACK_S
        self._placements[request_id] = _Placement(set(peers), deadline)

    def acknowledge(self, request_id: str, peer: Channel) -> None:
        """Record the acknowledgment of a worker."""
        placement = self._placements.get(request_id)
        if placement is not None:
            placement.unacknowledged.discard(peer)
            self.release()

    def disconnect(self, peer: Channel) -> None:
        """Expect no acknowledgment of a worker that has disconnected."""
        for placement in self._placements.values():
            placement.unacknowledged.discard(peer)
        self.release()

    def emit(self, event: Event) -> None:
        """Deliver an event, or hold it until its session is acknowledged."""
        placement = self._placements.get(event.request_id)
        if placement is None:
            self._outlet.deliver(event)
        else:
            placement.held.append(event)

    def release(self) -> None:
        """Deliver the held events that are acknowledged or overdue; call this often."""
        if not self._placements:
            return
        now = self._clock.monotonic()
        for request_id, placement in list(self._placements.items()):
            if not placement.unacknowledged or now >= placement.deadline:
                del self._placements[request_id]
                for event in placement.held:
                    self._outlet.deliver(event)
