"""Parking: at the limit of sessions an idle one leaves memory for the store, and goes on as if it had stayed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.store_engines import FailingStore, code
from tests.support.tiny import llama, llava
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Continue, Fork, Info, Open, Prompt
from ts_stateful.store.base import Store

QUESTIONS = ("What is it?", "And now?", "Why?")


@pytest.fixture(scope="module")
def model() -> Model:
    """A model that reads."""
    return llama()


def engine(model: Model, places: int, store: Store | None = None, **options: Any) -> Harness:
    """Return an engine for so many sessions."""
    return Harness(model, {"maxNumSequence": places, **options}, store=store)


def say(harness: Harness, session_id: str, text: str = "Hello", **fields: Any) -> dict[str, Any]:
    """Take a turn of a few tokens."""
    return harness.prompt(session_id, text, max_new_tokens=4, ignore_eos=True, **fields)


def held(harness: Harness) -> set[str]:
    """Return the sessions in memory."""
    return {session.session_id for session in harness.engine.table}


def test_parked_sessions_go_on_exactly() -> None:
    """Images, system prompt and turns: the same replies as on an engine that keeps all of them in memory."""
    model = llava()
    small, large = engine(model, 2, FailingStore()), engine(model, 8)
    answers: list[list[dict[str, Any]]] = []
    for harness in (small, large):
        for number in range(4):
            opened = harness.open(f"s{number}", [noise(number)], system="Be brief.")
            assert "error" not in opened
        turns = [
            say(harness, f"s{number}", question) for question in QUESTIONS for number in range(4)
        ]
        answers.append(turns)
    assert [turn["text"] for turn in answers[0]] == [turn["text"] for turn in answers[1]]
    assert [turn["turn"] for turn in answers[0]] == [1] * 4 + [2] * 4 + [3] * 4
    assert {turn["timing"]["restored_from"] for turn in answers[0]} == {"store"}
    assert held(small) == {"s2", "s3"}
    for name in ("s2", "s3"):
        small.media = {"p": noise(int(name[1]))}
        reference_reply(model, small, name, 4)


@pytest.mark.parametrize(
    "options",
    [{"store": None}, {"onFull": "refuse"}, {"content": "none"}, {"policy": "best_effort"}],
)
def test_what_cannot_come_back_is_not_parked(model: Model, options: dict[str, Any]) -> None:
    """Without a store or its texts, on request, or while the store lacks a turn: 429 and the time to wait."""
    store = FailingStore()
    harness = Harness(
        model,
        {"maxNumSequence": 1, "handler": {"onFull": options.get("onFull", "park")}},
        store=None if "store" in options else store,
        policy=options.get("policy", "required"),
        content=options.get("content", "all"),
    )
    harness.open("a")
    store.fails = "policy" in options
    assert say(harness, "a")["turn"] == 1
    refused = harness.open("b")
    assert code(refused) == "too_many_sessions"
    assert refused["error"]["retry_after_s"] == 60.0
    assert held(harness) == {"a"}
    store.fails = False
    assert say(harness, "a")["turn"] == 2
    if "policy" in options:  # it is saved now
        assert "error" not in harness.open("b")
        assert say(harness, "a")["turn"] == 3


def test_a_session_at_work_is_not_parked(model: Model) -> None:
    """Neither while it computes, nor while it is written."""
    harness = engine(model, 1, FailingStore())
    harness.open("a")
    turn = harness.submit(
        Prompt(session_id="a", prompt="x", max_new_tokens=4, ignore_eos=True), request_id="turn"
    )
    while harness.engine.busy or not harness.num_jobs:
        late = harness.submit(Open(session_id="b"), creates_session=True)
        assert code(harness.last(late)) == "too_many_sessions"
        harness.engine.step()
    late = harness.submit(Open(session_id="b"), creates_session=True)
    assert code(harness.last(late)) == "too_many_sessions"
    harness.run()
    assert harness.last(turn)["turn"] == 1
    assert "error" not in harness.open("b")


def test_a_turn_that_may_be_in_the_store_keeps_its_session(model: Model) -> None:
    """Its write failed and it was rolled back; read from the store, the session might have it."""
    store = FailingStore()
    harness = engine(model, 1, store)
    harness.open("a")
    store.fails = True
    assert code(say(harness, "a")) == "store_unavailable"
    store.fails = False
    assert code(harness.open("b")) == "too_many_sessions"
    assert say(harness, "a")["turn"] == 1
    assert "error" not in harness.open("b")


def test_a_fork_does_not_park_its_source(model: Model) -> None:
    """At a limit of one it is refused; at two another session leaves."""
    harness = engine(model, 1, FailingStore())
    harness.open("a")
    say(harness, "a")
    fork = Fork(session_id="a", new_session_id="b")
    assert code(harness.ask(fork, creates_session=True)) == "too_many_sessions"
    assert say(harness, "a")["turn"] == 2
    harness = engine(model, 2, FailingStore())
    for name in ("other", "a"):
        harness.open(name)
        say(harness, name)
    assert harness.ask(fork, creates_session=True)["turn"] == 1
    assert held(harness) == {"a", "b"}
    assert [say(harness, name)["turn"] for name in ("a", "b", "other")] == [2, 2, 2]


def test_every_request_finds_a_parked_session(model: Model) -> None:
    """A fork, information, a turn that was answered before, a close; opening its id again does not."""
    harness = engine(model, 1, FailingStore())

    def park() -> None:
        harness.open(f"other-{harness.clock.now}")
        harness.clock.now += 1

    harness.open("a")
    first = say(harness, "a", turn=1)
    park()
    assert harness.ask(Info(session_id="a"))["turns"] == 1
    park()
    assert say(harness, "a", turn=1)["text"] == first["text"]
    park()
    assert harness.ask(Continue(session_id="a", turn=1, after=0))["text"] == first["text"]
    park()
    assert code(harness.open("a")) == "session_exists"
    assert say(harness, "a")["turn"] == 2
    park()
    assert harness.close("a")["session_id"] == "a"
    assert code(harness.ask(Info(session_id="a"))) == "session_closed"


def test_time_goes_on_for_a_parked_session(model: Model) -> None:
    """It expires when it would have in memory, also if its last use is not in the store."""
    harness = engine(model, 1, FailingStore())
    for name, used_later in (("a", False), ("b", True)):
        harness.open(name)
        harness.clock.now += 40
        if used_later:
            assert code(say(harness, name, turn=9)) == "turn_gap"
            harness.engine.table.touch(harness.engine.table.get(name))
        harness.open(f"then-{name}")
        harness.clock.now += 21
        info = harness.ask(Info(session_id=name))
        assert ("error" in info) is not used_later
    harness.clock.now += 61
    assert code(harness.ask(Info(session_id="b"))) == "session_expired"


def test_stored_kv_states_leave_with_their_session() -> None:
    """They count for the budget of the sessions in memory, so they are computed again."""
    store = FailingStore()
    handler = {"store": {"kvSpill": True}, "deviceCacheBytes": 100_000}
    harness = engine(llama(), 3, store, handler=handler)
    for name in "abc":
        harness.open(name)
        for question in QUESTIONS:
            say(harness, name, question * 4)
    written = {key.split("/")[1] for key in store.list("kv")}
    assert written
    for name in "def":
        harness.open(name)
    harness.run()
    assert not store.list("kv")
    assert [say(harness, name)["turn"] for name in "abc"] == [4, 4, 4]


@pytest.mark.parametrize("store", [None, FailingStore()])
def test_idle_sessions_shut_out_no_request_without_one(model: Model, store: Store | None) -> None:
    """It has a place of its own, and takes none of theirs."""
    handler = {"onFull": "refuse"}
    harness = engine(model, 2, store, handler=handler)
    for name in ("a", "b"):
        harness.open(name)
    for number in range(3):
        prompt = Prompt(session_id=f"single-{number}", prompt="hi", max_new_tokens=2)
        answer = harness.ask(prompt, creates_session=True, ephemeral=True)
        assert answer["finish_reason"] in ("stop", "length")
    assert held(harness) == {"a", "b"}
    assert code(harness.open("c")) == "too_many_sessions"
