"""Requests that engines die of: found out, and given up alone."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.mortal_engine import MortalEngine
from tests.support.worker import eventually
from ts_stateful.process.spec import EngineSpec
from ts_stateful.process.worker import link as link_module
from ts_stateful.process.worker.fork_server import ForkServer
from ts_stateful.process.worker.in_flight import InFlight, Outstanding
from ts_stateful.process.worker.link import EngineLink
from ts_stateful.process.worker.supervisor import Supervisor, Timeouts
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Prompt


def ask(request_id: str) -> Submit:
    return Submit(request_id, Prompt(session_id=request_id, prompt="Hello"))


@pytest.fixture
def events() -> dict[str, Event]:
    """The last event of each request."""
    return {}


@pytest.fixture
def engine(runtime: Path) -> Iterator[MortalEngine]:
    """An engine that dies of requests whose id begins with `poison`."""
    spec = spec_of(runtime)
    with closing(MortalEngine(spec, lambda m: m.request_id.startswith("poison"))) as engine:
        yield engine


@pytest.fixture
def link(engine: MortalEngine, runtime: Path, events: dict[str, Event]) -> Iterator[EngineLink]:
    """A worker's link to it."""
    link = EngineLink(
        spec_of(runtime),
        Timeouts(load_s=60, restart_s=60, heartbeat_s=60),
        ForkServer(),
        on_event=lambda event: events.__setitem__(event.request_id, event),
        on_attached=lambda ids: None,
    )
    link.connect()
    with closing(link):
        yield link


def spec_of(folder: Path) -> EngineSpec:
    return EngineSpec(
        index=0,
        device="cpu",
        model_name="m",
        model_dir=str(folder),
        frontend_pid=1,
        folder=str(folder),
        max_sessions=8,
        document={},
    )


def test_a_request_that_engines_die_of_is_given_up_alone(
    link: EngineLink, engine: MortalEngine, events: dict[str, Event]
) -> None:
    """It gets `internal` after it has killed two engines that had nothing else; all others get their answer."""
    for name in ("a", "poison", "b", "c"):
        link.submit(ask(name))
    eventually(lambda: len(events) == 4)
    assert json.loads(events["poison"].body)["error"]["code"] == "internal"
    assert all(events[name].status == 200 for name in "abc")
    dead = [life for life in engine.lives if "poison" in life]
    # In the last two lives that it took, whatever else had been sent was answered before.
    assert all(life[-1] == "poison" for life in dead[-2:])
    assert len(dead) <= 4
    link.submit(ask("d"))
    eventually(lambda: "d" in events)
    assert events["d"].status == 200


def test_two_poisons_do_not_protect_each_other(link: EngineLink, events: dict[str, Event]) -> None:
    """Each is found out by itself."""
    for name in ("poison-1", "a", "poison-2"):
        link.submit(ask(name))
    eventually(lambda: len(events) == 3)
    assert [events[name].status for name in ("poison-1", "a", "poison-2")] == [500, 200, 500]


def test_an_engine_that_cannot_be_started_for_once_is_tried_again(
    link: EngineLink, events: dict[str, Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have died of the same shortage of memory."""
    refused = [OSError(errno.ENOMEM, "Cannot allocate memory")]
    connect = Supervisor.connect

    def start(supervisor: Supervisor) -> socket.socket:
        if refused:
            raise refused.pop()
        return connect(supervisor)

    monkeypatch.setattr(link_module, "_BACK_OFF_S", (0.0,))
    monkeypatch.setattr(Supervisor, "connect", start)
    for name in ("poison", "a"):
        link.submit(ask(name))
    eventually(lambda: len(events) == 2)
    assert not refused
    assert events["a"].status == 200


def test_what_is_outstanding_goes_out_in_order_and_a_suspect_alone() -> None:
    """Also when the suspect leaves in the middle of its trial."""
    sent: list[str] = []
    outstanding = Outstanding(lambda request: sent.append(request.message.request_id))
    requests = {name: InFlight(ask(name), None) for name in "abc"}
    for request in requests.values():
        outstanding.add(request)
    for _ in range(2):
        requests["b"].died(alone=False)
    sent.clear()
    outstanding.send_waiting()
    outstanding.add(InFlight(ask("d"), None))
    assert sent == ["b"]
    outstanding.remove("b")
    assert sent == ["b", "a", "c", "d"]


def test_progress_clears_a_request() -> None:
    """An engine that told something of the turn since the last death did not die of taking it."""
    request = InFlight(ask("a"), None)
    for _ in range(5):
        request.died(alone=True)
        assert not request.is_doomed
        request.progressed(Event("a", EventKind.PART, b"{}", num_chars=3, token_ids=(1, 2)))
    assert not request.is_suspect
    assert request.to_send.skip == 15
    assert request.to_send.replay == (1, 2) * 5
    assert request.to_send.is_retry


def test_nothing_is_tried_for_ever() -> None:
    """However much progress it makes in between."""
    request = InFlight(ask("a"), None)
    while not request.is_doomed:
        request.died(alone=False)
        request.progressed(Event("a", EventKind.PROGRESS, token_ids=(1,)))
        assert request.deaths < 100
