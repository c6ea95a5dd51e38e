"""Workers that share an engine: a worker that tries a suspect request has the engine for itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ts_stateful.process.worker.in_flight import InFlight, InFlightRequests
from ts_stateful.process.worker.trial_lock import SharedTrialLock, TrialLock
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Prompt


class Desk:
    """One worker's requests; `sent` are those that the engine has."""

    def __init__(self, folder: Path) -> None:
        self.lock = SharedTrialLock(folder / "inside", folder / "queue")
        self.is_up = True
        self.rejected: list[str] = []
        self.answered: list[str] = []
        self.in_flight = InFlightRequests(self, self.lock)

    def send(self, message: Submit) -> bool:
        """See `RequestSender`."""
        return self.is_up

    def add(self, *names: str) -> None:
        """Take requests."""
        for name in names:
            self.in_flight.add(InFlight(Submit(name, Prompt(session_id=name, prompt="Hello"))))

    @property
    def sent(self) -> list[str]:
        """The requests that the engine has."""
        return [request.message.request_id for request in self.in_flight if request.sent]

    def engine_died(self) -> None:
        """Reject what must not be sent again, as the link does."""
        for request in self.in_flight.engine_died():
            self.rejected.append(request.message.request_id)
            self.in_flight.remove(request.message.request_id)

    def engine_answered(self, name: str) -> None:
        """Take a token of a turn, and its end."""
        request = self.in_flight.get(name)
        assert request is not None
        request.record(Event(name, EventKind.PROGRESS, token_ids=(1,)))
        self.in_flight.clear(request)
        self.in_flight.remove(name)
        self.answered.append(name)


@pytest.fixture
def desks(tmp_path: Path) -> Iterator[tuple[Desk, Desk]]:
    """Two workers of one engine."""
    desks = (Desk(tmp_path), Desk(tmp_path))
    yield desks
    for desk in desks:
        desk.in_flight.close()


def live(desks: tuple[Desk, Desk], poison: str) -> bool:
    """Run an engine that answers all requests until it receives the poison; return True if it died."""
    for desk in desks:
        desk.in_flight.send_waiting()
    for _ in range(20):
        if any(poison in desk.sent for desk in desks):
            for desk in desks:
                desk.engine_died()
            return True
        for desk in desks:
            for name in desk.sent:
                desk.engine_answered(name)
            desk.in_flight.send_held()
    return False


@pytest.mark.parametrize("first", [0, 1])
def test_the_poison_of_one_worker_spares_the_requests_of_the_other(
    desks: tuple[Desk, Desk], first: int
) -> None:
    """Whichever comes first, and although all requests were in the engine at its death."""
    guilty, innocent = desks
    guilty.add("a", "poison", "b")
    innocent.add("c", "d")
    order = (desks[first], desks[1 - first])
    deaths = 0
    while live(order, "poison"):
        deaths += 1
        assert deaths < 10
    assert guilty.rejected == ["poison"]
    assert innocent.rejected == []
    assert sorted(guilty.answered) == ["a", "b"]
    assert sorted(innocent.answered) == ["c", "d"]


def test_no_new_request_is_sent_before_or_during_a_trial(desks: tuple[Desk, Desk]) -> None:
    """The engine finishes its requests, then the trial runs, then all others follow in their order."""
    one, two = desks
    one.add("suspect")
    for _ in range(2):
        one.engine_died()
        two.add(f"running-{len(two.sent)}")
        one.in_flight.send_waiting()
    assert one.sent == []
    two.add("later", "last")
    assert two.sent == ["running-0", "running-1"]
    for name in two.sent:
        two.engine_answered(name)
    one.in_flight.send_held()
    two.in_flight.send_held()
    assert (one.sent, two.sent) == (["suspect"], [])
    one.engine_answered("suspect")
    two.in_flight.send_held()
    assert two.sent == ["later", "last"]


def test_a_worker_without_requests_in_the_engine_holds_no_lock(desks: tuple[Desk, Desk]) -> None:
    """Because all are answered, or because there is no engine for it."""
    one, two = desks
    one.add("a")
    assert not two.lock.acquire(exclusive=True)
    one.engine_answered("a")
    assert two.lock.acquire(exclusive=True)
    two.lock.release()
    one.is_up = False
    one.add("b")
    assert one.sent == []
    assert two.lock.acquire(exclusive=True)


def test_the_only_worker_of_an_engine_always_gets_the_lock() -> None:
    """It has the engine for itself anyway."""
    lock = TrialLock()
    assert lock.acquire(exclusive=False)
    assert lock.acquire(exclusive=True)
    assert lock.is_exclusive
