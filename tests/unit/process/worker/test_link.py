"""A link to an engine: the bytes of its requests in flight, given back however a request ends, and its stats."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle as Names
from hypothesis.stateful import RuleBasedStateMachine, consumes, invariant, rule

from tests.support.clock import FakeClock
from tests.support.worker import eventually
from ts_stateful.config.schema import EngineConfig
from ts_stateful.process.messages import Draining, Pong
from ts_stateful.process.spec import EngineSpec
from ts_stateful.process.worker.fork_server import ForkServer
from ts_stateful.process.worker.in_flight import InFlight
from ts_stateful.process.worker.link import EngineLink
from ts_stateful.protocol.errors import EngineUnavailable
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.operations import ListSessions
from ts_stateful.protocol.requests import Open, Prompt
from ts_stateful.protocol.stats import Stats

_DEADLINE_S = 60.0


class Link(EngineLink):
    """A link to an engine that a test plays; `up` while the engine runs."""

    up = True

    def send(self, message: Any) -> bool:
        """Say whether there is an engine."""
        return self.up

    def restart(self) -> None:
        """Leave it to the test."""
        self.up = False

    def back(self) -> None:
        """Take the engine for running again."""
        self.up = True
        self.in_flight.send_waiting()


class InFlightBytes(RuleBasedStateMachine):
    """Requests to two engines, which answer them, die, come back, are full, or end for good."""

    ids = Names("ids")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.count = 0
        self.sent: dict[str, int] = {}
        self.answers: list[Event] = []
        self.links = [self.link(index) for index in range(2)]

    def link(self, index: int, heartbeat_s: float = 1e9) -> Link:
        """Make the link to an engine."""
        spec = EngineSpec(
            index=index,
            device="cpu",
            model_name="m",
            model_dir="/m",
            frontend_pid=1,
            folder="/m",
            max_sessions=8,
            document={},
        )
        engine = EngineConfig(restart_deadline_sec=_DEADLINE_S, heartbeat_sec=heartbeat_s)
        return Link(spec, engine, ForkServer(), self, self.clock)

    def on_event(self, event: Event) -> None:
        """Keep an answer."""
        self.answers.append(event)

    def on_placed(self, engine: int, session_ids: tuple[str, ...]) -> None:
        """Ignore sessions."""

    def on_released(self, session_id: str) -> None:
        """Ignore a session."""

    def on_full(self, engine: int, message: Submit, next_engines: tuple[int, ...]) -> None:
        """Send a request to the next engine."""
        assert self.links[engine].take(message.request_id)
        self.links[next_engines[0]].submit(message)

    @rule(target=ids, num_bytes=st.integers(0, 10**6), opens=st.booleans(), second=st.booleans())
    def submit(self, num_bytes: int, *, opens: bool, second: bool) -> str:
        """Send a request; one that opens a session may go to another engine."""
        self.count += 1
        name = str(self.count)
        command = Open(session_id=name) if opens else Prompt(session_id=name, prompt="Hi")
        message = Submit(name, command, creates_session=opens, num_bytes=num_bytes)
        self.sent[name] = num_bytes
        self.links[second].submit(message, (1 - second,) if opens else ())
        return name

    def answer(self, name: str, event: Event) -> None:
        """Send an event from the engine that has the request; the last one ends it there."""
        for link in self.links:
            if link.up and (request := link.in_flight.get(name)) and request.sent:
                link.on_message(None, event)  # type: ignore[arg-type]
                assert (link.in_flight.get(name) is None) == event.ends
                return

    @rule(name=ids, tokens=st.booleans())
    def proceed(self, name: str, *, tokens: bool) -> None:
        """Report progress."""
        self.answer(name, Event(name, EventKind.PART, token_ids=(1,) if tokens else ()))

    @rule(name=ids)
    def answer_pulled(self, name: str) -> None:
        """Answer a request whose turn goes on."""
        self.answer(name, Event(name, EventKind.LAST, more=True))

    @rule(name=ids, kind=st.sampled_from([EventKind.LAST, EventKind.OVER]))
    def finish(self, name: str, kind: EventKind) -> None:
        """Answer a request to its end."""
        self.answer(name, Event(name, kind))

    @rule(name=ids, status=st.sampled_from([400, 429, 500]))
    def fail(self, name: str, status: int) -> None:
        """Refuse a request; with 429 it goes to the next engine, if there is one."""
        self.answer(name, Event(name, EventKind.LAST, status=status))

    @rule(name=consumes(ids))
    def disconnect(self, name: str) -> None:
        """Drop a request whose client has disconnected."""
        any(link.drop(name) for link in self.links)
        assert name not in {request.message.request_id for request in self.requests()}

    @rule(second=st.booleans())
    def die(self, *, second: bool) -> None:
        """End an engine."""
        self.links[second].on_close(None)  # type: ignore[arg-type]

    @rule(second=st.booleans())
    def restart(self, *, second: bool) -> None:
        """Start an engine that has died."""
        self.links[second].back()

    @rule(second=st.booleans(), successor=st.booleans())
    def drain(self, *, second: bool, successor: bool) -> None:
        """Let an engine finish its requests, with or without a successor."""
        self.links[second].on_message(None, Draining(successor=successor))  # type: ignore[arg-type]

    @rule()
    def wait_too_long(self) -> None:
        """Let the time pass in which requests wait for an engine."""
        self.clock.now += 2 * _DEADLINE_S
        for link in self.links:
            link.watch()

    def requests(self) -> list[InFlight]:
        """List the requests in flight."""
        return [request for link in self.links for request in link.in_flight]

    @invariant()
    def counts_what_is_in_flight(self) -> None:
        """The bytes are those of the requests in flight, as they were sent."""
        for link in self.links:
            names = [request.message.request_id for request in link.in_flight]
            assert link.in_flight.num_bytes == sum(self.sent[name] for name in names)

    def teardown(self) -> None:
        """End every request that is left in a way of its own: nothing is left of it."""
        for number, request in enumerate(self.requests()):
            name = request.message.request_id
            if number % 2:
                self.disconnect(name)
                continue
            for link in self.links:
                link.on_message(None, Event(name, EventKind.LAST))  # type: ignore[arg-type]
        assert [link.in_flight.num_bytes for link in self.links] == [0, 0]
        assert not self.requests()


TestInFlightBytes = InFlightBytes.TestCase
TestInFlightBytes.settings = settings(max_examples=60, stateful_step_count=40)


def test_an_engine_is_killed_for_pings_without_an_answer_not_for_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where both processes were frozen, as by `docker pause`, time has passed and the engine does not hang."""
    machine = InFlightBytes()
    link = machine.link(0, heartbeat_s=5.0)
    killed: list[bool] = []
    monkeypatch.setattr(link.supervisor, "kill", lambda: killed.append(True))
    link._down_since = None
    for _ in range(20):
        machine.clock.now += 3600.0
        link.watch()
        link.on_message(None, Draining(successor=True))  # type: ignore[arg-type]
    machine.clock.now += 3600.0
    for _ in range(6):
        link.watch()
    assert not killed
    link.watch()
    assert killed


def test_a_link_that_closes_refuses_what_has_no_answer() -> None:
    """As a front does that stops while turns run, and with what comes later. A turn that is pulled has its answer."""
    machine = InFlightBytes()
    for _ in range(2):
        machine.submit(0, opens=False, second=False)
    machine.answer("2", Event("2", EventKind.LAST, more=True))
    asked = machine.links[0].administer(ListSessions())
    machine.links[0].close()
    machine.submit(0, opens=False, second=False)
    answered = [(event.request_id, event.status) for event in machine.answers]
    assert answered == [("2", 200), ("1", 503), ("3", 503)]
    assert isinstance(asked.exception(timeout=0), EngineUnavailable)


def test_an_engine_that_died_leaves_its_counts() -> None:
    """Until the next one reports its own. It holds nothing any more."""
    link = InFlightBytes().links[0]
    link.on_message(None, Pong(Stats(sessions_open=2, device_bytes=9, tokens_generated=7)))  # type: ignore[arg-type]
    link.on_close(None)  # type: ignore[arg-type]
    assert link.stats == Stats(tokens_generated=7)
    link.back()
    link.on_message(None, Pong(Stats(tokens_generated=1)))  # type: ignore[arg-type]
    assert link.stats == Stats(tokens_generated=1)


def test_a_link_without_a_thread_is_down_until_it_attaches_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not take a connection that nothing reads for an engine."""
    link = InFlightBytes().link(0, heartbeat_s=0.0)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def connect() -> socket.socket:
        """Connect to an engine that ends at once."""
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    monkeypatch.setattr(link.supervisor, "connect", connect)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            link.connect()
    assert not link.is_up
    link.connect()
    eventually(
        lambda: not link.up
    )  # it has read the end of the connection, and asked for another engine


def test_an_engine_is_started_once_there_is_a_thread_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next look at it; it stayed away for good."""
    link = InFlightBytes().link(0)
    started: list[bool] = []
    monkeypatch.setattr(link, "_restart", lambda: started.append(True))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        EngineLink.restart(link)
    monkeypatch.setattr(link, "restart", lambda: EngineLink.restart(link))
    for _ in range(3):
        link.watch()
    eventually(lambda: started == [True])


def test_a_link_that_closes_while_it_connects_keeps_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine would wait for a worker that has left."""
    link = InFlightBytes().link(0, heartbeat_s=0.0)
    ours, theirs = socket.socketpair()

    def connect() -> socket.socket:
        """Connect, and lose the worker at once."""
        link.close()
        return ours

    monkeypatch.setattr(link.supervisor, "connect", connect)
    link.connect()
    with theirs:
        assert theirs.recv(1) == b""
    assert not link.is_up
