"""What is held back until all workers of an engine know of a session."""

from __future__ import annotations

from typing import Any

import pytest

from ts_stateful.process.engine.placement_sync import PlacementSync
from ts_stateful.process.messages import SessionPlaced
from ts_stateful.protocol.events import Event, EventKind


class Other:
    """A worker's channel."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def send(self, message: Any) -> None:
        """Takes a message."""
        self.told.append(message)


@pytest.fixture
def delivered() -> list[str]:
    """The requests whose events have gone out."""
    return []


@pytest.fixture
def now() -> list[float]:
    """The time, to be set."""
    return [0.0]


@pytest.fixture
def announcements(delivered: list[str], now: list[float]) -> PlacementSync:
    """With nothing announced yet."""
    return PlacementSync(lambda event: delivered.append(event.request_id), clock=lambda: now[0])


def emit(announcements: PlacementSync, *requests: str) -> None:
    """Something comes of these requests."""
    for request_id in requests:
        announcements.emit(Event(request_id, EventKind.PART))


def test_nobody_is_answered_before_all_others_know(
    announcements: PlacementSync, delivered: list[str]
) -> None:
    """Other requests are not held up, and what was held back leaves in order."""
    one, two = Other(), Other()
    announcements.announce("new", ("s", "t"), [one, two])  # type: ignore[list-item]
    assert one.told == two.told == [SessionPlaced("new", ("s", "t"))]
    emit(announcements, "new", "old", "new")
    assert delivered == ["old"]
    announcements.heard("new", one)  # type: ignore[arg-type]
    announcements.heard("never announced", two)  # type: ignore[arg-type]
    assert delivered == ["old"]
    announcements.heard("new", two)  # type: ignore[arg-type]
    assert delivered == ["old", "new", "new"]
    emit(announcements, "new")
    assert len(delivered) == 4


@pytest.mark.parametrize("way", ["gone", "hanging"])
def test_who_does_not_answer_is_not_waited_for(
    announcements: PlacementSync, delivered: list[str], now: list[float], way: str
) -> None:
    """A worker that has gone, at once; one that hangs, for a second."""
    other = Other()
    announcements.announce("new", ("s",), [other])  # type: ignore[list-item]
    emit(announcements, "new")
    now[0] = 0.9
    announcements.release()
    assert delivered == []
    if way == "gone":
        announcements.left(other)  # type: ignore[arg-type]
    now[0] = 1.0
    announcements.release()
    assert delivered == ["new"]
