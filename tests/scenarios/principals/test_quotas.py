"""Quotas of principals: each is bounded by its own, and feels nothing of another's use."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support.fronted import PRINCIPAL, FrontedEngine
from tests.support.harness import Harness
from tests.support.store_engines import FailingStore
from tests.support.tiny import llama
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Close, Fork, Open, Prompt
from ts_stateful.protocol.tenants import internal_id

_PRINCIPALS = st.sampled_from(["alice", "bob"])
_NAMES = st.sampled_from(["a", "b", "c", "d"])
_SESSIONS, _TURNS = 2, 2


@cache
def model() -> Model:
    """Return a model that reads."""
    return llama()


def config(**quotas: Any) -> dict[str, Any]:
    """Return the configuration of a server whose principals have quotas; there is room for both."""
    handler = {"auth": {"mode": "header", "header": PRINCIPAL}, "quotas": quotas}
    return {"maxNumSequence": 2 * _SESSIONS, "handler": handler}


def server(store: FailingStore | None, **quotas: Any) -> FrontedEngine:
    """Return a server with quotas."""
    return FrontedEngine(model(), store, config=config(**quotas))


def prompt(name: str | None, text: str = "hi", **fields: Any) -> dict[str, Any]:
    """Return a prompt of a session, or of none."""
    named = {} if name is None else {"session_id": name}
    return {"prompt": text, "max_new_tokens": 3, "ignore_eos": True, **named, **fields}


_BODIES = st.one_of(
    st.builds(lambda name: {"type": "open", "session_id": name}, _NAMES),
    st.builds(prompt, _NAMES, st.sampled_from(["hi", "one two three four five six"])),
    st.builds(lambda a, b: {"type": "fork", "session_id": a, "new_session_id": b}, _NAMES, _NAMES),
    st.builds(lambda kind, a: {"type": kind, "session_id": a}, st.sampled_from(["close", "info"]), _NAMES),
    st.sampled_from([0.5, 7.0, 61.0]),  # seconds that pass
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    requests=st.lists(st.tuples(_PRINCIPALS, _BODIES), min_size=4, max_size=30),
    stored=st.booleans(),
)
def test_nobody_consumes_anothers_quota(requests: list[tuple[str, Any]], stored: bool) -> None:
    """The answers, refusals and times to wait are those of a server of its own."""
    quotas = {"openSessions": _SESSIONS, "tokensPerMinute": 60}
    shared, *own = (server(FailingStore() if stored else None, **quotas) for _ in range(3))
    alone = dict(zip(("alice", "bob"), own, strict=True))
    for principal, body in requests:
        if isinstance(body, float):
            for each in (shared, *own):
                each.harness.clock.now += body
                each.harness.engine.tick()
                each.harness.run()
            continue
        answers = [each.ask(principal, body) for each in (shared, alone[principal])]
        seen = [
            (one.status, one.headers, {**one.document, "timing": None, "saved": None})
            for one in answers
        ]
        assert seen[0] == seen[1], (principal, body)
        assert answers[0].code != "too_many_sessions"


class Quotas(RuleBasedStateMachine):
    """Two principals at one engine: requests overlap, clients disconnect, time passes."""

    def __init__(self) -> None:
        super().__init__()
        quotas = {"openSessions": _SESSIONS, "turnsInFlight": _TURNS}
        self.harness = Harness(model(), config(**quotas), store=FailingStore())
        self.sent: list[str] = []

    def _kept(self, principal: str) -> list[Any]:
        owner = internal_id(principal, "x")[:32]
        return [session for session in self.harness.engine.table if session.owner == owner]

    def _submit(self, principal: str, command: Any, **fields: Any) -> None:
        own = self._kept(principal)
        kept = sum(not session.ephemeral for session in own)
        turns = sum(len(session.work) for session in own)
        request = self.harness.submit(command, principal=principal, **fields)
        self.sent.append(request)
        events = self.harness.events.get(request)
        error = self.harness.last(request).get("error", {}) if events and events[-1].ends else {}
        if error.get("status") == 429 and error["code"] != "queue_full":
            assert error["code"] == "quota_exceeded"
            assert error["retry_after_s"] >= 1
            used = {
                "handler.quotas.openSessions": (kept, _SESSIONS),
                "handler.quotas.turnsInFlight": (turns, _TURNS),
            }
            assert used[error["field"]][0] >= used[error["field"]][1]

    @rule(principal=_PRINCIPALS, name=_NAMES)
    def open(self, principal: str, name: str) -> None:
        command = Open(session_id=internal_id(principal, name))
        self._submit(principal, command, creates_session=True)

    @rule(principal=_PRINCIPALS, name=_NAMES, length=st.integers(1, 20))
    def prompt(self, principal: str, name: str, length: int) -> None:
        command = _turn(internal_id(principal, name), length)
        self._submit(principal, command)

    @rule(principal=_PRINCIPALS, length=st.integers(1, 20))
    def single(self, principal: str, length: int) -> None:
        command = _turn(internal_id(principal, f"single-{len(self.sent)}"), length)
        self._submit(principal, command, creates_session=True, ephemeral=True)

    @rule(principal=_PRINCIPALS, name=_NAMES, new=_NAMES)
    def fork(self, principal: str, name: str, new: str) -> None:
        ids = internal_id(principal, name), internal_id(principal, new)
        self._submit(
            principal, Fork(session_id=ids[0], new_session_id=ids[1]), creates_session=True
        )

    @rule(principal=_PRINCIPALS, name=_NAMES)
    def close(self, principal: str, name: str) -> None:
        self._submit(principal, Close(session_id=internal_id(principal, name)))

    @rule(index=st.integers(0, 100))
    def disconnect(self, index: int) -> None:
        if self.sent:
            self.harness.engine.drop(self.sent[index % len(self.sent)])

    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        self.harness.steps(count)

    @rule(seconds=st.sampled_from([1.0, 11.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.harness.clock.now += seconds
        self.harness.engine.tick()

    @invariant()
    def nobody_has_more_than_its_quota(self) -> None:
        for principal in ("alice", "bob"):
            own = self._kept(principal)
            assert sum(not session.ephemeral for session in own) <= _SESSIONS
            commands = [work.command for session in own for work in session.work]
            assert sum(not isinstance(command, Fork) for command in commands) <= _TURNS

    def teardown(self) -> None:
        """Nothing is counted any more when all has ended."""
        self.harness.run()
        for principal in ("alice", "bob"):
            assert not any(session.work for session in self._kept(principal))
            for name in "abcd":
                self.harness.close(internal_id(principal, name))
        self.harness.run()
        assert len(self.harness.engine.table) == 0
        assert not self.harness.engine.table.places.parked._counts
        answer = self.harness.open(internal_id("alice", "new"))
        assert "error" not in answer


def _turn(session_id: str, length: int) -> Prompt:
    return Prompt(session_id=session_id, prompt="x", max_new_tokens=length, ignore_eos=True)


TestQuotas = Quotas.TestCase
TestQuotas.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_tokens_are_those_that_turns_add() -> None:
    """New prompt and reply, not the history; the time to wait is the true one, and over HTTP in whole seconds."""
    quotas = {"tokensPerMinute": 600, "principals": {"bob": {"tokensPerMinute": 6000}}}
    front = server(None, **quotas)
    spent, total = 0, 0
    for principal in ("alice", "bob"):
        front.ask(principal, {"type": "open", "session_id": "s"})
    while spent < 600:
        answered = front.ask("alice", prompt("s", "word " * 60))
        assert answered.status == 200
        assert front.ask("bob", prompt("s", "word " * 60)).status == 200
        usage = answered.document["usage"]
        after = usage["prompt_tokens"] + usage["completion_tokens"]
        spent, total = spent + after - total, after
        if total > 300:
            front.ask("alice", {"type": "rewind", "session_id": "s", "to_turn": 0})
            total = front.ask("alice", {"type": "info", "session_id": "s"}).document["tokens"]
    refused = front.ask("alice", prompt("s"))
    error = refused.document["error"]
    assert (error["code"], error["field"]) == ("quota_exceeded", "handler.quotas.tokensPerMinute")
    assert abs(error["retry_after_s"] - (spent - 600 + 1) / 10) < 0.11
    assert int(refused.headers["Retry-After"]) - error["retry_after_s"] < 1
    assert front.ask("bob", prompt("s")).status == 200
    front.harness.clock.now += error["retry_after_s"] - 0.2
    assert front.ask("alice", prompt("s")).code == "quota_exceeded"
    front.harness.clock.now += 0.2
    assert front.ask("alice", prompt("s")).status == 200


def test_a_turn_without_its_client_counts_until_it_ends() -> None:
    """Else a client could disconnect from one after the other. Sessions of single requests count too."""
    harness = Harness(model(), config(turnsInFlight=1))
    long = _turn(internal_id("alice", "single"), 50)
    harness.open(internal_id("alice", "s"))
    running = harness.submit(_turn(internal_id("alice", "s"), 50))
    harness.steps(2)
    harness.engine.drop(running)
    refused = harness.submit(long, creates_session=True, ephemeral=True)
    assert harness.last(refused)["error"]["field"] == "handler.quotas.turnsInFlight"
    other = _turn(internal_id("bob", "single"), 5)
    answer = harness.ask(other, creates_session=True, ephemeral=True)
    assert answer["finish_reason"] == "length"
    harness.run()
    assert harness.ask(long, creates_session=True, ephemeral=True)["finish_reason"] == "length"


def test_without_principals_all_clients_are_one() -> None:
    """Whatever the ids are that they choose; a retry after an engine's death was admitted before."""
    harness = Harness(model(), {"handler": {"quotas": {"openSessions": 1, "turnsInFlight": 1}}})
    harness.open(internal_id("alice", "s"))
    refused = harness.open(internal_id("bob", "s"))
    assert refused["error"]["code"] == "quota_exceeded"
    harness.submit(_turn(internal_id("alice", "s"), 5))
    for is_retry in (False, True):
        single = _turn("single", 5)
        request = harness.submit(single, creates_session=True, ephemeral=True, is_retry=is_retry)
        statuses = [event.status for event in harness.events[request]]
        assert statuses == ([200] if is_retry else [429])
    harness.run()
