"""What operators do to the sessions of a language model: they are listed, evicted and ended without a change to any reply."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.harness import Harness
from tests.support.store_engines import FailingStore, code
from tests.support.tiny import llama
from ts_stateful.engine.administration import administer
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.operations import (
    EvictSession,
    ExpireSession,
    ListSessions,
    Outcome,
)
from ts_stateful.protocol.requests import Prompt


@pytest.fixture(scope="module")
def model() -> Model:
    """A model that reads."""
    return llama()


def say(harness: Harness, session_id: str, text: str = "Hello") -> dict[str, Any]:
    """Take a turn of a few tokens."""
    return harness.prompt(session_id, text, max_new_tokens=4, ignore_eos=True)


def ids(outcome: Outcome) -> list[str]:
    """The listed sessions."""
    assert outcome.error is None
    return [one.info.session_id for one in outcome.sessions]


def test_sessions_are_listed_without_content(model: Model) -> None:
    """With tokens and bytes; the session of a single request is not one of them, and a look is no use of a session."""
    harness = Harness(model)
    harness.open("a", metadata={"tenant": "acme", "secret": "grapefruit"})
    harness.open("b", system="grapefruit")
    reply = say(harness, "b", "grapefruit")
    command = Prompt(session_id="once", prompt="Hi", max_new_tokens=4)
    harness.submit(command, creates_session=True, ephemeral=True)
    harness.clock.now += 5
    listed = administer(harness.engine, ListSessions())
    assert ids(listed) == ["b", "a"]
    first, second = (one.info for one in listed.sessions)
    assert (first.turns, first.residency, first.running, first.idle_s) == (1, "device", False, 5)
    assert first.tokens > first.cached_tokens > second.tokens
    assert first.device_bytes > 0
    assert [one.tenant for one in listed.sessions] == [None, "acme"]
    written = msgspec.json.encode(listed)
    assert b"grapefruit" not in written
    assert reply["text"].encode() not in written
    assert ids(administer(harness.engine, ListSessions())) == ["b", "a"]


@pytest.mark.parametrize("tenant", [7, "two\nlines"])
def test_a_tenant_that_no_terminal_can_show_is_not_listed(model: Model, tenant: object) -> None:
    """Clients without a principal write what they like."""
    harness = Harness(model)
    harness.open("a", metadata={"tenant": tenant})
    assert administer(harness.engine, ListSessions()).sessions[0].tenant is None


def test_an_evicted_session_goes_on_exactly(model: Model) -> None:
    """Its next turn computes the states again."""
    harness, calm = Harness(model), Harness(model)
    for one in (harness, calm):
        one.open("a")
        say(one, "a")
    evicted = administer(harness.engine, EvictSession("a"))
    info = evicted.sessions[0].info
    assert (info.residency, info.device_bytes, info.host_bytes) == ("record", 0, 0)
    again, undisturbed = say(harness, "a", "And now?"), say(calm, "a", "And now?")
    assert again["text"] == undisturbed["text"]
    assert again["timing"]["restored_from"] == "replay"
    assert undisturbed["timing"]["restored_from"] is None


def test_a_session_with_a_turn_is_not_evicted(model: Model) -> None:
    """Its states are in use; nothing of the turn changes."""
    harness = Harness(model)
    harness.open("a")
    turn = harness.submit(Prompt(session_id="a", prompt="Hi", max_new_tokens=4, ignore_eos=True))
    harness.steps(1)
    refused = administer(harness.engine, EvictSession("a"))
    assert refused.error is not None
    assert "turn in progress" in refused.error
    harness.run()
    assert harness.last(turn)["finish_reason"] == "length"


def test_a_session_expires_after_its_turns(model: Model) -> None:
    """An idle one at once; the store forgets both."""
    store = FailingStore()
    harness = Harness(model, store=store)
    for name in ("busy", "idle"):
        harness.open(name)
    turn = harness.submit(Prompt(session_id="busy", prompt="Hi", max_new_tokens=4, ignore_eos=True))
    harness.steps(1)
    assert ids(administer(harness.engine, ExpireSession("idle"))) == ["idle"]
    assert ids(administer(harness.engine, ExpireSession("busy"))) == ["busy"]
    assert ids(administer(harness.engine, ListSessions())) == ["busy"]
    harness.run()
    assert harness.last(turn)["finish_reason"] == "length"
    for name in ("busy", "idle"):
        assert code(say(harness, name)) == "session_expired"
    harness.run()
    other = Harness(model, store=store, first_id=1000)
    for name in ("busy", "idle"):
        assert code(say(other, name)) == "session_expired"


def test_parked_sessions_are_listed_on_request(model: Model) -> None:
    """By their ids; they are not in memory."""
    harness = Harness(model, {"maxNumSequence": 1}, store=FailingStore())
    for name in ("a", "b"):
        harness.open(name)
        say(harness, name)
    assert administer(harness.engine, ListSessions()).parked == ()
    listed = administer(harness.engine, ListSessions(parked=True))
    assert (ids(listed), listed.parked) == (["b"], ("a",))


@pytest.mark.parametrize("operation", [EvictSession("none"), ExpireSession("none")])
def test_an_unknown_session_has_no_outcome(
    model: Model, operation: EvictSession | ExpireSession
) -> None:
    """Another engine may have it."""
    assert administer(Harness(model).engine, operation) == Outcome()


def test_a_defect_fails_the_operation_alone(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine and its sessions go on."""
    harness = Harness(model)
    harness.open("a")
    with monkeypatch.context() as patched:
        patched.setattr(harness.kind, "describe", None)
        failed = administer(harness.engine, ListSessions())
    assert failed.error is not None
    assert "internal error" in failed.error
    assert "text" in say(harness, "a")
