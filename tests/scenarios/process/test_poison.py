"""Requests that repeatedly crash engines are isolated and rejected."""

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
from ts_stateful.config.schema import EngineConfig
from ts_stateful.process.spec import EngineSpec
from ts_stateful.process.worker import link as link_module
from ts_stateful.process.worker.fork_server import ForkServer
from ts_stateful.process.worker.link import EngineLink
from ts_stateful.process.worker.supervisor import Supervisor
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.requests import Prompt


def ask(request_id: str) -> Submit:
    return Submit(request_id, Prompt(session_id=request_id, prompt="Hello"))


class Events(dict[str, Event]):
    """The last event of each request."""

    def on_event(self, event: Event) -> None:
        """Record an event."""
        self[event.request_id] = event

    def on_placed(self, engine: int, session_ids: tuple[str, ...]) -> None:
        """Ignore sessions."""

    def on_released(self, session_id: str) -> None:
        """Ignore a session."""

    def on_full(self, engine: int, message: Submit, next_engines: tuple[int, ...]) -> None:
        """Fail: there are no other engines."""
        raise AssertionError(message.request_id)


@pytest.fixture
def events() -> Events:
    """A listener without events."""
    return Events()


@pytest.fixture
def engine(runtime: Path) -> Iterator[MortalEngine]:
    """An engine that dies of requests whose id begins with `poison`."""
    spec = spec_of(runtime)
    with closing(MortalEngine(spec, lambda m: m.request_id.startswith("poison"))) as engine:
        yield engine


@pytest.fixture
def link(engine: MortalEngine, runtime: Path, events: Events) -> Iterator[EngineLink]:
    """A worker's link to it."""
    link = EngineLink(
        spec_of(runtime),
        EngineConfig(load_timeout_sec=60, restart_deadline_sec=60, heartbeat_sec=60),
        ForkServer(),
        events,
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


def test_only_the_request_that_crashes_engines_is_rejected(
    link: EngineLink, engine: MortalEngine, events: Events
) -> None:
    """It gets `internal` after it has crashed two engines that had no other request. All others are answered."""
    for name in ("a", "poison", "b", "c"):
        link.submit(ask(name))
    eventually(lambda: len(events) == 4)
    assert json.loads(events["poison"].body)["error"]["code"] == "internal"
    assert all(events[name].status == 200 for name in "abc")
    dead = [life for life in engine.lives if "poison" in life]
    # In its last two lives, all other requests were answered before.
    assert all(life[-1] == "poison" for life in dead[-2:])
    assert len(dead) <= 4
    link.submit(ask("d"))
    eventually(lambda: "d" in events)
    assert events["d"].status == 200


def test_two_poisons_do_not_protect_each_other(link: EngineLink, events: Events) -> None:
    """Each is isolated by itself."""
    for name in ("poison-1", "a", "poison-2"):
        link.submit(ask(name))
    eventually(lambda: len(events) == 3)
    assert [events[name].status for name in ("poison-1", "a", "poison-2")] == [500, 200, 500]


def test_a_failed_start_of_an_engine_is_tried_again(
    link: EngineLink, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shortage of memory may pass."""
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
