"""A turn whose commit fails, beside those of other sessions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.asking import ask, code
from tests.support.harness import Harness, reference_reply
from tests.support.memory_store import MemoryStore
from ts_stateful.language.network.load import Model
from ts_stateful.language.turns.outbox import TurnOutbox
from ts_stateful.language.turns.prefix_sharing import PrefixSharing
from ts_stateful.protocol.requests import Prompt

_COMMIT = "ts_stateful.language.turns.prefix_sharing.PrefixSharing.learn"


def _fail_in_s(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let the commits of session `s` fail halfway."""
    learn = PrefixSharing.learn

    def fail(sharing: PrefixSharing, sequence: Any) -> None:
        if sequence.session.session_id == "s":
            raise error
        learn(sharing, sequence)

    monkeypatch.setattr(_COMMIT, fail)


def test_a_commit_that_fails_costs_its_session_alone(
    harness: Harness, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a store the session ends, and so do the turns that wait in it; another session goes on."""
    harness.open("other")
    _fail_in_s(monkeypatch, RuntimeError("secret text of a library"))
    bad, waiting = harness.submit(ask()), harness.submit(ask("And?"))
    good = harness.submit(Prompt(session_id="other", prompt="Hi", max_new_tokens=12))
    harness.run()
    assert [code(harness.last(request)) for request in (bad, waiting)] == ["internal"] * 2
    assert "secret" not in str(harness.last(bad))
    assert harness.last(good)["turn"] == 1
    reference_reply(model, harness, "other", 12)
    assert code(harness.ask(ask())) == "session_not_found"


def test_a_turn_that_the_store_has_is_there_after_its_commit_failed(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session goes on from the store, and the prompt that is sent again is not counted twice."""
    harness = Harness(model, store=MemoryStore())
    harness.open("s")
    with monkeypatch.context() as failing:
        _fail_in_s(failing, RuntimeError("a library failed"))
        assert code(harness.ask(ask(turn=1))) == "internal"
    assert harness.ask(ask(turn=1))["replayed"]
    assert harness.ask(ask("And?", turn=2))["turn"] == 2
    reference_reply(model, harness, "s", 12)


def test_a_poisoned_device_ends_the_engine_in_a_commit(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other session can go on there; the worker sends the turn to the next engine."""
    _fail_in_s(monkeypatch, torch.AcceleratorError("the device is broken"))
    request = harness.submit(ask())
    with pytest.raises(torch.AcceleratorError):
        harness.run()
    assert not any(event.ends for event in harness.events[request])


@pytest.mark.parametrize("place", ["turns.preparation.Preparation.prepare", "decoding.sample"])
def test_a_poisoned_device_ends_the_engine_in_any_part_of_a_turn(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Also where a turn starts, which no other error gets out of."""

    def fail(*args: Any) -> None:
        raise torch.AcceleratorError("the device is broken")

    monkeypatch.setattr(f"ts_stateful.language.{place}", fail)
    with pytest.raises(torch.AcceleratorError):
        harness.ask(ask())


def test_a_reply_that_cannot_be_shown_is_committed(
    harness: Harness, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request gets an error, and the session goes on after it."""

    def fail(outbox: TurnOutbox, *args: Any) -> None:
        raise ValueError("secret text of a parser")

    with monkeypatch.context() as failing:
        failing.setattr("ts_stateful.language.turns.outbox.TurnOutbox.finished", fail)
        assert code(harness.ask(ask(turn=1))) == "internal"
    assert harness.ask(ask(turn=1))["replayed"]
    assert harness.ask(ask("And?", turn=2))["turn"] == 2
    reference_reply(model, harness, "s", 12)
