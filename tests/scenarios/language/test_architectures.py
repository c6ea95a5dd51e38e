"""Every architecture that is served is served exactly, through all that can happen to a session."""

from __future__ import annotations

import pytest
import torch

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.sounds import media_of
from tests.support.tiny import MODELS, MORE_MODELS
from tests.support.tiny.text import WINDOW
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Cancel, Prompt

NEW_TOKENS = 16


@pytest.mark.parametrize("name", sorted(MORE_MODELS))
def test_a_long_conversation_is_exact(name: str) -> None:
    """Turns beside others, cancelled, rolled back and rebuilt: what follows is what `generate` makes of the transcript."""
    model = MORE_MODELS[name]()
    harness = Harness(model)
    assert "error" not in harness.open("s", media_of(model))
    _beside_others(model, harness)
    _after_a_cancel(model, harness)
    _after_a_roll_back(model, harness)
    _after_an_eviction(model, harness)
    # Windows and chunks were exceeded.
    assert len(harness.engine.table.get("s").state.log) > 4 * WINDOW


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_what_a_model_remembers_of_its_last_call_is_not_used(name: str) -> None:
    """The offset of positions behind images, which stock code keeps in the model from call to call, is neither read nor set."""
    model = {**MODELS, **MORE_MODELS}[name]()
    harness = Harness(model)
    harness.open("s", [noise(1), noise(2, 80, 30)])
    wrong = model.network.base_model.rope_deltas = torch.tensor([[1000]])
    harness.prompt("s", "What color is the circle?", max_new_tokens=NEW_TOKENS)
    assert model.network.base_model.rope_deltas is wrong
    reference_reply(model, harness, "s", NEW_TOKENS)


def _beside_others(model: Model, harness: Harness) -> None:
    for other in ("a", "b"):
        harness.open(other)
        harness.submit(Prompt(session_id=other, prompt=f"I am {other}.", max_new_tokens=NEW_TOKENS))
        harness.steps(2)
    _ask(model, harness, "What color is the circle?")


def _after_a_cancel(model: Model, harness: Harness) -> None:
    harness.submit(Prompt(session_id="s", prompt="Go on.", ignore_eos=True))
    harness.steps(9)
    assert harness.ask(Cancel(session_id="s"))["cancelled"]
    _ask(model, harness, "And the square?")


def _after_a_roll_back(model: Model, harness: Harness) -> None:
    request = harness.submit(Prompt(session_id="s", prompt="Never mind.", ignore_eos=True))
    harness.steps(9)
    harness.engine.drop(request)
    harness.clock.now += 10.1
    harness.engine.tick()
    harness.pump()
    assert not harness.engine.busy
    _ask(model, harness, "Tell me a story, äöü 🙂, please.")


def _after_an_eviction(model: Model, harness: Harness) -> None:
    harness.engine.table.evict_idle()
    _ask(model, harness, "Which one is yellow?")


def _ask(model: Model, harness: Harness, question: str) -> None:
    assert "error" not in harness.prompt("s", question, max_new_tokens=NEW_TOKENS)
    reference_reply(model, harness, "s", NEW_TOKENS)
