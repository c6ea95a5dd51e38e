"""Many sessions in one pass: each gets the reply that it would have got alone."""

from __future__ import annotations

import pytest

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.tiny import MODELS, MORE_MODELS, llama
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Prompt

ROWS = 32
NEW_TOKENS = 10
# Each has rules of its own: latents, torch's own function, shared states, a method, chunks.
SPECIAL = ("deepseek_v3", "deepseek_v32", "falcon", "glm_moe_dsa", "gemma3n", "gpt_neo", "llama4")
RECURRENT = {"mamba2", "qwen3_next"}
FLAT = {name: make for name, make in MODELS.items() if name not in RECURRENT}
FLAT |= {name: MORE_MODELS[name] for name in SPECIAL}


@pytest.fixture(scope="module", params=sorted(FLAT))
def model(request: pytest.FixtureRequest) -> Model:
    """Every architecture that can take several sessions in one pass."""
    model = FLAT[request.param]()
    assert model.forward.flat
    return model


def crowd(model: Model) -> Harness:
    limits = {"maxNumSequence": ROWS, "batchSize": ROWS, "handler": {"prefillChunk": 48}}
    harness = Harness(model, limits)
    for index in range(ROWS):
        harness.open(f"s{index}", [noise(1)] if model.encoder and index % 4 == 0 else [])
    return harness


def ask(index: int, num_tokens: int) -> Prompt:
    text = "What color is the circle? " * (1 + index % 5) + str(index)
    return Prompt(session_id=f"s{index}", prompt=text, max_new_tokens=num_tokens)


def test_sessions_join_and_leave_at_every_step(model: Model) -> None:
    """Ragged lengths, one to thirty-two rows: token for token what stock `generate` gives each of them."""
    harness = crowd(model)
    largest = 0
    for index in range(ROWS):
        harness.submit(ask(index, NEW_TOKENS + index % 7))
        harness.pump()
        harness.engine.step()
        largest = max(largest, len(harness.kind.turns.scheduler))
    harness.run()
    assert largest > 4
    for index in range(ROWS):
        reference_reply(model, harness, f"s{index}", NEW_TOKENS + index % 7)


def test_thirty_two_rows_take_one_pass_a_step() -> None:
    """However many sessions decode, the network runs once."""
    model = llama()
    harness = crowd(model)
    for index in range(ROWS):
        harness.submit(ask(index, 40))
    harness.pump()
    while any(sequence.num_to_prefill for sequence in harness.kind.turns.scheduler._prefilling):
        harness.engine.step()
    passes = []
    hook = model.network.register_forward_hook(lambda *_: passes.append(1))
    harness.engine.step()
    hook.remove()
    assert len(passes) == 1
    assert len(harness.kind.turns.scheduler) == ROWS
