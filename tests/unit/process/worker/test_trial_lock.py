"""Workers that share an engine: one that tries what engines die of has it for itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ts_stateful.process.worker.in_flight import InFlight, Outstanding
from ts_stateful.process.worker.trial_lock import SharedTrialLock, TrialLock
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Prompt


class Desk:
    """A worker's share of the work; `sent` is what the engine has of it."""

    def __init__(self, folder: Path) -> None:
        self.gate = SharedTrialLock(folder / "inside", folder / "queue")
        self.is_up = True
        self.given_up: list[str] = []
        self.answered: list[str] = []
        self.outstanding = Outstanding(self._send, self.gate)

    def _send(self, request: InFlight) -> None:
        request.sent = self.is_up

    def add(self, *names: str) -> None:
        """Takes requests."""
        for name in names:
            submit = Submit(name, Prompt(session_id=name, prompt="Hello"))
            self.outstanding.add(InFlight(submit, None))

    @property
    def sent(self) -> list[str]:
        """What the engine has."""
        return [request.message.request_id for request in self.outstanding if request.sent]

    def engine_died(self) -> None:
        """As the link does."""
        for request in self.outstanding.engine_died():
            self.given_up.append(request.message.request_id)
            self.outstanding.remove(request.message.request_id)

    def engine_told(self, name: str) -> None:
        """A token of a turn, and its end."""
        request = self.outstanding.get(name)
        assert request is not None
        request.progressed(Event(name, EventKind.PROGRESS, token_ids=(1,)))
        self.outstanding.cleared(request)
        self.outstanding.remove(name)
        self.answered.append(name)


@pytest.fixture
def desks(tmp_path: Path) -> Iterator[tuple[Desk, Desk]]:
    """Two workers of one engine."""
    desks = (Desk(tmp_path), Desk(tmp_path))
    yield desks
    for desk in desks:
        desk.outstanding.close()


def live(desks: tuple[Desk, Desk], poison: str) -> bool:
    """One life of an engine that dies of a request as soon as it has it, else answers all; whether it died."""
    for desk in desks:
        desk.outstanding.send_waiting()
    for _ in range(20):
        if any(poison in desk.sent for desk in desks):
            for desk in desks:
                desk.engine_died()
            return True
        for desk in desks:
            for name in desk.sent:
                desk.engine_told(name)
            desk.outstanding.send_held()
    return False


@pytest.mark.parametrize("first", [0, 1])
def test_the_poison_of_one_worker_spares_the_requests_of_the_other(
    desks: tuple[Desk, Desk], first: int
) -> None:
    """Whoever comes first, and though all of them were there whenever the engine died."""
    guilty, innocent = desks
    guilty.add("a", "poison", "b")
    innocent.add("c", "d")
    order = (desks[first], desks[1 - first])
    deaths = 0
    while live(order, "poison"):
        deaths += 1
        assert deaths < 10
    assert guilty.given_up == ["poison"]
    assert innocent.given_up == []
    assert sorted(guilty.answered) == ["a", "b"]
    assert sorted(innocent.answered) == ["c", "d"]


def test_nothing_new_is_sent_while_one_is_tried_or_waits_for_it(desks: tuple[Desk, Desk]) -> None:
    """What is in the engine comes to its end, then it is tried, then all go on in their order."""
    one, two = desks
    one.add("suspect")
    for _ in range(2):
        one.engine_died()
        two.add(f"running-{len(two.sent)}")
        one.outstanding.send_waiting()
    assert one.sent == []
    two.add("later", "last")
    assert two.sent == ["running-0", "running-1"]
    for name in two.sent:
        two.engine_told(name)
    one.outstanding.send_held()
    two.outstanding.send_held()
    assert (one.sent, two.sent) == (["suspect"], [])
    one.engine_told("suspect")
    two.outstanding.send_held()
    assert two.sent == ["later", "last"]


def test_who_has_nothing_there_keeps_nobody_out(desks: tuple[Desk, Desk]) -> None:
    """Because everything is answered, or because there is no engine for it."""
    one, two = desks
    one.add("a")
    assert not two.gate.enter(alone=True)
    one.engine_told("a")
    assert two.gate.enter(alone=True)
    two.gate.leave()
    one.is_up = False
    one.add("b")
    assert one.sent == []
    assert two.gate.enter(alone=True)


def test_a_worker_of_its_own_is_never_held_up() -> None:
    """It has the engine for itself anyway."""
    gate = TrialLock()
    assert gate.enter(alone=False)
    assert gate.enter(alone=True)
    assert gate.is_alone
