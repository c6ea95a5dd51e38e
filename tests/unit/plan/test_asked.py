"""The request for a plan: its defaults, and values that it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.plans import GIB, LLAVA_7B
from ts_stateful.config.sizes import StatesSize
from ts_stateful.plan.asked import Asked, PlanRefused


def test_open_values_have_defaults() -> None:
    """A tenth of the sessions have turns, 16 at least; a session has 4,096 tokens with one image."""
    assert [Asked(sessions).turns for sessions in (5, 50, 500)] == [5, 16, 50]
    assert (Asked(5).tokens, Asked(5, context=100).tokens) == (4096, 100)
    assert Asked(5, model=LLAVA_7B).image_tokens == 576
    assert Asked(5, model=LLAVA_7B, context=100).image_tokens == 100
    assert Asked(5, model=LLAVA_7B, session_image_tokens=0).image_tokens == 0


def test_sessions_are_shared_out_evenly() -> None:
    """There is an engine for each GPU, but none without a session."""
    assert Asked(10, gpus=4).shares == [2, 2, 3, 3]
    assert Asked(3, gpus=8).shares == [1, 1, 1]
    assert Asked(3).shares == [3]


def test_engines_of_a_split_model_take_groups_of_gpus() -> None:
    """Each GPU has its part of the weights and of a token."""
    whole, split = (Asked(10, gpus=4, model=LLAVA_7B, split=count) for count in (1, 2))
    assert (whole.engines, split.engines) == (4, 2)
    assert split.weights == whole.weights / 2
    assert split.part is not None
    assert split.part.token_bytes("bfloat16") == LLAVA_7B.token_bytes("bfloat16") / 2
    assert Asked(10, gpus=4, weight_bytes=100, split=2).weights == 50


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"active": 9}, "--active 5"),
        ({"gpu_memory": GIB}, "--gpus"),
        ({"model": LLAVA_7B, "context": 5000}, "--context 4096"),
        ({"context": 500, "session_tokens": 600}, "--tokens 500"),
        ({"session_tokens": 300, "session_image_tokens": 400}, "--image-tokens 300"),
        ({"idle_min": 50_000}, "--idle 35000"),
        ({"split": 2}, "--gpus 2"),
        ({"split": 2, "gpus": 2, "states": StatesSize.given(8)}, "leave it out"),
        ({"split": 2, "gpus": 5}, "--gpus 2, or a multiple"),
        ({"split": 3, "gpus": 3, "model": LLAVA_7B}, "cannot be divided by 3"),
    ],
)
def test_impossible_requests_are_refused(fields: dict[str, Any], remedy: str) -> None:
    """The refusal names options that work."""
    with pytest.raises(PlanRefused, match=remedy):
        Asked(5, **fields)
