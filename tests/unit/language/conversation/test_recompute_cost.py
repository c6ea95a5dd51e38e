"""What it costs to have KV states again."""

from __future__ import annotations

import pytest

from tests.support.tiny import llama
from ts_stateful.language.conversation.context import Context, Stored
from ts_stateful.language.conversation.history import Delta
from ts_stateful.language.conversation.recompute_cost import RecomputeCost
from ts_stateful.language.network.load import Model


@pytest.fixture(scope="module")
def model() -> Model:
    """A model that sees nothing."""
    return llama()


def cost(model: Model, length: int, stored: int = 0) -> float:
    """For each byte of a session of so many tokens."""
    context = Context(Delta(), model.new_kv())
    context.kv.length = length
    context.stored = Stored(stored)
    return RecomputeCost(model)(context)


def test_a_long_session_costs_more(model: Model) -> None:
    """For each of its bytes, as its tokens attend to more; a short one costs what the linear layers do."""
    assert cost(model, 0) == pytest.approx(1, rel=0.01)
    assert cost(model, 0) < cost(model, 100) < cost(model, 1000)
    even = model.num_parameters / (64 * len(model.forward.layout.layers))
    assert cost(model, int(even)) == pytest.approx(2, rel=0.01)


def test_what_is_in_the_store_costs_little(model: Model) -> None:
    """As far as it is there, whatever the length."""
    assert cost(model, 1000, stored=1000) == cost(model, 10, stored=10) < cost(model, 0) / 2
    assert cost(model, 1000, 1000) < cost(model, 1000, 500) < cost(model, 1000)
