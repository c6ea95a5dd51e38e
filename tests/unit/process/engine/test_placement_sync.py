"""Events of new sessions wait until all workers of an engine have recorded the place."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clock import FakeClock
from ts_stateful.process.channel import Channel
from ts_stateful.process.engine.placement_sync import PlacementSync
from ts_stateful.process.messages import SessionPlaced
from ts_stateful.protocol.events import Event, EventKind


class OtherWorker(Channel):
    """A worker's channel, without a connection."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    def send(self, message: Any) -> None:
        """Record a message."""
        self.received.append(message)


class Delivered(list[str]):
    """The requests whose events were delivered."""

    def deliver(self, event: Event) -> None:
        """Record an event."""
        self.append(event.request_id)


@pytest.fixture
def delivered() -> Delivered:
    """An outlet without events."""
    return Delivered()


@pytest.fixture
def clock() -> FakeClock:
    """A clock."""
    return FakeClock()


@pytest.fixture
def placements(delivered: Delivered, clock: FakeClock) -> PlacementSync:
    """A synchronization without placements."""
    return PlacementSync(delivered, clock)


def emit(placements: PlacementSync, *requests: str) -> None:
    """Emit an event of each request."""
    for request_id in requests:
        placements.emit(Event(request_id, EventKind.PART))


def test_events_wait_for_the_acknowledgment_of_all_other_workers(
    placements: PlacementSync, delivered: Delivered
) -> None:
    """Other requests are not held up, and held events keep their order."""
    one, two = OtherWorker(), OtherWorker()
    placements.place("new", ("s", "t"), [one, two])
    assert one.received == two.received == [SessionPlaced("new", ("s", "t"))]
    emit(placements, "new", "old", "new")
    assert delivered == ["old"]
    placements.acknowledge("new", one)
    placements.acknowledge("never placed", two)
    assert delivered == ["old"]
    placements.acknowledge("new", two)
    assert delivered == ["old", "new", "new"]
    emit(placements, "new")
    assert len(delivered) == 4


@pytest.mark.parametrize("disconnects", [True, False])
def test_a_silent_worker_does_not_hold_events_up(
    placements: PlacementSync, delivered: Delivered, clock: FakeClock, disconnects: bool
) -> None:
    """If it disconnects, they are delivered at once; if it hangs, after a second."""
    other = OtherWorker()
    placements.place("new", ("s",), [other])
    emit(placements, "new")
    clock.now += 0.9
    placements.release()
    assert delivered == []
    if disconnects:
        placements.disconnect(other)
        assert delivered == ["new"]
    clock.now += 0.1
    placements.release()
    assert delivered == ["new"]
