"""The keys of indexes are part of a session's KV states, in all that happens to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.harness import Harness, reference_reply
from tests.support.memory_store import MemoryStore
from tests.support.spilling import make, residency
from tests.support.tiny.latent import deepseek_v32, glm_moe_dsa
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Fork, Rewind

NEW_TOKENS = 12
QUESTIONS = ("What color is the circle?", "And the square?", "Which one is yellow?")


@pytest.fixture(scope="module", params=[deepseek_v32, glm_moe_dsa])
def model(request: pytest.FixtureRequest) -> Model:
    """Every layer has an index, or every other one."""
    return request.param()  # type: ignore[no-any-return]


def talk(harness: Harness) -> Harness:
    """Let a session have three turns."""
    harness.open("s")
    for question in QUESTIONS:
        ask(harness, "s", question)
    return harness


def ask(harness: Harness, session_id: str, text: str) -> dict[str, Any]:
    """Run an exact turn."""
    answer = harness.prompt(session_id, text, max_new_tokens=NEW_TOKENS)
    reference_reply(harness.model, harness, session_id, NEW_TOKENS)
    return answer


def cached(answer: dict[str, Any]) -> int:
    """The tokens that were not computed."""
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_fork_and_a_rewind_take_them_along(model: Model) -> None:
    """Both go on from their last token, and neither changes the other."""
    harness = talk(Harness(model))
    whole = len(harness.engine.table.get("s").state.log)
    before = harness.engine.table.get("s").state.turns[-1].delta.keep
    assert "error" not in harness.ask(Fork(session_id="s", new_session_id="f", at_turn=2))
    assert cached(ask(harness, "f", "Again?")) >= before - 1
    assert cached(ask(harness, "s", "Go on.")) >= whole - 1
    harness.ask(Rewind(session_id="s", to_turn=2))
    assert cached(ask(harness, "s", "Tell me more.")) >= before - 1


def test_their_bytes_are_counted(model: Model) -> None:
    """In budgets, and until they are evicted."""
    harness = talk(Harness(model))
    kv, layout = harness.engine.table.get("s").state.kv, model.forward.layout
    assert sum(layout.indexes) > 0
    numbers = sum(s.heads * (s.key_dim + s.value_dim) for s in layout.layers) + sum(layout.indexes)
    assert kv.num_bytes == kv.length * 4 * numbers
    harness.engine.table.evict_idle()
    assert kv.num_bytes == 0
    assert cached(ask(harness, "s", "Once more?")) == 0


def test_the_store_has_them(model: Model) -> None:
    """They are read as they were written, and nothing is computed again."""
    harness = make(MemoryStore(), sessions=0, made=model)
    talk(harness)
    context = harness.engine.table.get("s").state
    before = [part[:, : context.kv.length].clone() for part in context.kv.states]
    unbounded = harness.engine.table.limits
    harness.engine.table.limits = unbounded._replace(device_bytes=context.device_bytes)
    harness.kind.persistence.became_idle()
    harness.pump()
    harness.engine.table.limits = unbounded
    harness.engine.table.evict_idle()
    assert residency(harness, "s") == "store"
    length = len(context.log)
    answer = ask(harness, "s", "And now?")
    assert answer["timing"]["restored_from"] == "store"
    assert cached(answer) >= length - 1
    for part, expected in zip(context.kv.states, before, strict=True):
        assert torch.equal(part[:, : expected.shape[1]], expected)
