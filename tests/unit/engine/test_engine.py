"""The engine core with a kind of model that keeps a number: admission, searches, expiry, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.harness import LaterExecutor
from tests.support.memory_store import MemoryStore
from ts_stateful.config.schema import Config
from ts_stateful.engine.administration import administer
from ts_stateful.engine.core import EngineCore
from ts_stateful.engine.engine import SessionEngine
from ts_stateful.engine.no_store import NoStore
from ts_stateful.engine.reports import session_info
from ts_stateful.engine.services import Services, WorkQueue
from ts_stateful.engine.waiting import Missing, PendingRequest
from ts_stateful.protocol.answers import SessionInfo
from ts_stateful.protocol.errors import SessionClosed, SessionExpired, SessionNotFound, TurnGap
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.operations import ListSessions
from ts_stateful.protocol.requests import Fork, Info, Open, Request, Rewind
from ts_stateful.protocol.stats import Stats
from ts_stateful.sessions.places import Limits
from ts_stateful.sessions.session import Residency, Session
from ts_stateful.sessions.shared import Shareable
from ts_stateful.store.access import StoreAccess
from ts_stateful.store.base import StoreUnavailable
from ts_stateful.store.ordered_calls import StoreCalls


class Number:
    """A `SessionState` without tensors."""

    residency = Residency.DEVICE
    device_bytes = host_bytes = 0
    shared: Sequence[Shareable] = ()

    def to_host(self) -> None: ...

    def to_record(self) -> None: ...

    def release(self) -> None: ...


class NumberKind(NoStore[Number]):
    """Opens sessions and describes them. `stored` are the ids that a search finds, or what it raises."""

    num_parameters = 1
    fatal: type[Exception] = ConnectionAbortedError
    busy = False

    def __init__(self, core: EngineCore[Number]) -> None:
        self.core = core
        self.persistence = self
        self.stored: dict[str, Exception | None] = {}
        self.first: set[str] = set()
        self.elsewhere: set[str] = set()  # sessions that have ended or gone on at another engine
        self.ended_ids: list[str] = []

    def admit(self, request: PendingRequest) -> None:
        command, table = request.message.command, self.core.table
        if isinstance(command, Open):
            table.open(str(command.session_id), Number())
        elif isinstance(command, Info) and command.session_id == "broken":
            raise ZeroDivisionError
        elif isinstance(command, Info) and command.session_id == "poisoned":
            raise self.fatal
        elif isinstance(command, Rewind):
            raise TurnGap("there is no such turn", field="to_turn")
        else:
            table.get(str(command.session_id))
        if isinstance(command, Fork):
            table.open(str(command.new_session_id), Number())
        self.core.outbox.answer(request.message.request_id, {"ok": True})

    def searches_first(self, message: Submit, session_id: str) -> bool:
        return session_id in self.first

    def search(self, session_id: str, *, in_use: bool) -> Callable[[], Any]:
        def find() -> str:
            outcome = self.stored.get(session_id, SessionNotFound("no such session"))
            if outcome is not None:
                raise outcome
            return session_id

        return find

    def adopt(self, session_id: str, found: str, *, in_use: bool) -> Missing | None:
        now = self.core.clock.monotonic()
        session = Session(found, Number(), now, now + 600, 60.0, now)
        self.core.table.adopt(session, in_use=in_use)
        return None

    def reads(self, message: Submit, session: Session[Number]) -> bool:
        return isinstance(message.command, Info | Fork)

    def look_after(self, session: Session[Number]) -> Callable[[], bool] | None:
        return lambda: session.session_id in self.elsewhere

    def ended(
        self,
        session: Session[Number],
        reason: str,
        then: Callable[[Any], None] = lambda outcome: None,
    ) -> None:
        assert reason == "expired"
        self.ended_ids.append(session.session_id)

    def tune(self) -> None: ...

    def drop(self, request_id: str) -> None:
        self.core.waiting.drop(request_id)

    def set_away(self, away: bool) -> None: ...

    def tick(self) -> None: ...

    def next_deadline(self) -> float | None:
        return None

    def step(self) -> None: ...

    def stats(self) -> Stats:
        return Stats(steps_done=7)

    def describe(self, session: Session[Number]) -> SessionInfo:
        return session_info(session, self.core.clock)

    def check_integrity(self) -> None: ...


class Engine:
    """An engine of that kind with a store, driven by hand."""

    def __init__(self, *, store: bool = True) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self.adopted: list[tuple[str, str | None]] = []
        self.clock, self.executor, self._queue = FakeClock(), LaterExecutor(), WorkQueue()
        access = StoreAccess(MemoryStore(), "required", self.executor)
        calls = StoreCalls(access, self._queue) if store else None
        services = Services(self, self._queue, self.clock, calls)
        core: EngineCore[Number] = EngineCore(Config(), Limits(2, 60.0, 600.0), services)
        self.kind = NumberKind(core)
        self.engine = SessionEngine(core, self.kind)

    def emit(self, event: Event) -> None:
        if event.kind is EventKind.ADOPTED:
            self.adopted.append((event.request_id, event.session_id))
            return
        assert event.request_id not in self.answers, "answered twice"
        self.answers[event.request_id] = json.loads(event.body)

    def ask(self, request_id: str, session_id: str, *, opens: bool = False) -> None:
        command = Open(session_id=session_id) if opens else Info(session_id=session_id)
        self.submit(request_id, command, opens=opens)

    def submit(self, request_id: str, command: Request, *, opens: bool = False) -> None:
        self.engine.submit(Submit(request_id, command, creates_session=opens))

    def settle(self) -> None:
        self.executor.run()
        self._queue.run()
        self.engine.settle()
        self.engine.check_integrity()

    def code(self, request_id: str) -> str:
        return str(self.answers[request_id].get("error", {}).get("code", "ok"))


def test_a_session_that_is_not_here_is_looked_for_once() -> None:
    """Its requests wait for the search together, and are admitted in their order."""
    engine = Engine()
    engine.kind.stored["s"] = None
    engine.ask("a", "s")
    engine.ask("b", "s")
    assert not engine.answers
    assert len(engine.executor.jobs) == 1
    engine.settle()
    assert list(engine.answers) == ["a", "b"]
    assert {engine.code("a"), engine.code("b")} == {"ok"}
    assert engine.adopted == [("a", "s")]  # once, with the request that brought it here


def test_without_a_store_nothing_is_looked_for() -> None:
    """The refusal comes at once."""
    engine = Engine(store=False)
    engine.ask("a", "s")
    assert engine.code("a") == "session_not_found"


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (SessionClosed("closed elsewhere"), "session_closed"),
        (SessionExpired("expired elsewhere"), "session_expired"),
        (StoreUnavailable("no answer", "wait"), "store_unavailable"),
        (ZeroDivisionError(), "internal"),
    ],
)
def test_the_outcome_of_a_search_is_the_answer(outcome: Exception, code: str) -> None:
    """The store knows more than the table."""
    engine = Engine()
    engine.kind.stored["s"] = outcome
    engine.ask("a", "s")
    engine.settle()
    assert engine.code("a") == code


def test_an_expiry_here_outlives_a_search_in_vain() -> None:
    """A session that was never written has expired, which says more than that it is unknown."""
    engine = Engine()
    engine.ask("a", "s", opens=True)
    engine.clock.now += 61
    engine.ask("b", "s")
    engine.settle()
    assert (engine.code("a"), engine.code("b")) == ("ok", "session_expired")
    assert engine.kind.ended_ids == ["s"]


def test_a_kind_may_search_before_it_admits() -> None:
    """What is not found is opened."""
    engine = Engine()
    engine.kind.first.add("s")
    engine.ask("a", "s", opens=True)
    assert not engine.answers
    engine.settle()
    assert engine.code("a") == "ok"
    assert "s" in engine.engine.table


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_reads_look_if_a_session_went_on_elsewhere(is_elsewhere: bool) -> None:
    """What it has become is read from the store then. Requests keep their order, those for a fork come after the fork."""
    engine = Engine()
    engine.ask("a", "s", opens=True)
    if is_elsewhere:
        engine.kind.elsewhere.add("s")
        engine.kind.stored["s"] = SessionClosed("closed elsewhere")
    engine.submit("b", Fork(session_id="s", new_session_id="fork"), opens=True)
    engine.ask("c", "fork")
    engine.ask("d", "s")
    assert list(engine.answers) == ["a"]
    while len(engine.answers) < 4:
        engine.settle()
    code = "session_closed" if is_elsewhere else "ok"
    assert list(engine.answers)[1] == "b"
    assert [engine.code(one) for one in "bd"] == [code, code]
    assert engine.code("c") == ("session_not_found" if is_elsewhere else "ok")
    assert ("s" in engine.engine.table) is not is_elsewhere


def test_a_gap_looks_once() -> None:
    """It is refused as such if the session is as it was."""
    engine = Engine()
    engine.ask("a", "s", opens=True)
    engine.submit("b", Rewind(session_id="s", to_turn=3))
    assert "b" not in engine.answers
    engine.settle()
    assert engine.code("b") == "turn_gap"


def test_a_full_table_refuses_what_the_store_has() -> None:
    """And all that wait for it, once each."""
    engine = Engine()
    for name in "xy":
        engine.ask(name, name, opens=True)
    engine.kind.stored["s"] = None
    engine.ask("a", "s")
    engine.ask("b", "s")
    engine.settle()
    assert {engine.code("a"), engine.code("b")} == {"too_many_sessions"}
    assert not engine.adopted


def test_a_dropped_request_gets_no_answer() -> None:
    """The session is here all the same when the search ends."""
    engine = Engine()
    engine.kind.stored["s"] = None
    engine.ask("a", "s")
    engine.engine.drop("a")
    engine.settle()
    assert not engine.answers
    assert "s" in engine.engine.table


def test_a_defect_fails_the_request_that_met_it() -> None:
    """The next one is served."""
    engine = Engine(store=False)
    engine.ask("a", "broken")
    engine.ask("b", "s", opens=True)
    assert (engine.code("a"), engine.code("b")) == ("internal", "ok")


def test_the_clock_ends_sessions() -> None:
    """`tick` does so without a request, and names its next deadline."""
    engine = Engine()
    engine.ask("a", "s", opens=True)
    engine.clock.now += 61
    assert engine.engine.next_deadline() <= engine.clock.now
    engine.engine.tick()
    assert engine.kind.ended_ids == ["s"]
    assert engine.engine.next_deadline() > engine.clock.now


def test_stats_join_the_kind_and_the_table() -> None:
    """The kind counts its work, the engine its sessions."""
    engine = Engine()
    engine.ask("a", "s", opens=True)
    stats = engine.engine.stats()
    assert (stats.steps_done, stats.sessions_open, stats.store_failures) == (7, 1, 0)


def test_an_error_of_a_poisoned_device_leaves_the_engine() -> None:
    """It must not become the refusal of a request or of an operation."""
    engine = Engine(store=False)
    with pytest.raises(NumberKind.fatal):
        engine.ask("a", "poisoned")
    engine.ask("b", "s", opens=True)
    engine.kind.describe = _poisoned  # type: ignore[method-assign]
    with pytest.raises(NumberKind.fatal):
        administer(engine.engine, ListSessions())


def _poisoned(session: Session[Number]) -> SessionInfo:
    raise NumberKind.fatal
