"""Plans for each profile, for language models and for models with states."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.plans import GIB, LLAMA_8B, LLAVA_7B, document_of, plan_of
from ts_stateful.config.schema import load_config
from ts_stateful.config.sizes import StatesSize, read_transformer
from ts_stateful.plan import Asked, PlanRefused, make_plan
from ts_stateful.plan.budget import Budget, Weight, find_budget, weight
from ts_stateful.protocol.profile import Profile


def _handler(asked: Asked) -> dict[str, Any]:
    handler: dict[str, Any] = document_of(plan_of(asked))["handler"]
    return handler


def _budget(asked: Asked, memory: int) -> tuple[Weight, Budget]:
    one = weight(asked)
    assert one is not None
    return one, find_budget(asked, one, memory)


def test_a_known_plan() -> None:
    """LLaVA-1.5-7B on four 80 GiB GPUs: half a mebibyte a token, 24 of 125 sessions of a GPU stay."""
    asked = Asked(500, gpus=4, gpu_memory=80 * GIB, memory=256 * GIB, model=LLAVA_7B, context=4096)
    plan = plan_of(asked)
    handler = document_of(plan)["handler"]
    weights = 2 * 8_030_000_000
    assert handler["deviceCacheBytes"] == (80 * GIB - GIB - weights) * 80 // 100
    assert (handler["engines"], handler["device"], handler["contextLength"]) == (4, "cuda", 4096)
    assert handler["hostCacheBytes"] == (256 - 2 - 4 * 3) * GIB // 4 // 2
    comments = " ".join(plan.text.replace("#", "").split())
    assert (
        "32 layers x 32 KV heads x (128 + 128) x 2 bytes (bfloat16) = 524,288 bytes a token"
        in comments
    )
    assert "engines 4 with 125 sessions each" in comments
    assert "on a device 23 sessions" in comments
    [warning] = [text for text in plan.warnings if "not all sessions fit" in text]
    assert "are computed again when they continue" in warning


@pytest.mark.parametrize("profile", Profile)
def test_numbers_of_a_profile(profile: Profile) -> None:
    """Continuous batches hold turns, sequence batches open and recently ended sessions, async batches a request."""
    asked = Asked(200, profile, idle_min=2, opened_per_min=30)
    document = document_of(plan_of(asked))
    expected = {
        Profile.CONTINUOUS: ("continuousBatching", 64, 200, 400),
        Profile.SEQUENCE: ("sequenceBatching", 261, 260, 100),
        Profile.ASYNC: ("asyncCommunication", 1, 200, 400),
    }[profile]
    key, batch, sequences, queue = expected
    assert document[key] is True
    assert (document["batchSize"], document["maxNumSequence"]) == (batch, sequences)
    assert document["jobQueueSize"] == queue
    assert document["sequenceMaxIdleMSec"] == 120_000


def test_turns_in_progress_size_the_batch() -> None:
    """A quarter more is for requests beside them."""
    assert document_of(plan_of(Asked(1000, active=400)))["batchSize"] == 500


def test_a_large_model_has_time_to_load() -> None:
    """Timeouts grow with the bytes that all engines read from one disk."""
    handler = _handler(Asked(8, gpus=8, weight_bytes=140_000_000_000))
    assert handler["loadTimeoutSec"] == 5760
    assert document_of(plan_of(Asked(8)))["startupTimeout"] == 1200


def test_more_gpus_than_sessions_are_reported() -> None:
    """A session uses one GPU."""
    plan = plan_of(Asked(3, gpus=8))
    assert document_of(plan)["handler"]["engines"] == 3
    assert any("5 of 8 GPUs have nothing to do" in warning for warning in plan.warnings)


def test_states_are_never_computed_again() -> None:
    """Sequences that do not fit the device need host memory; without it they are refused."""
    states = StatesSize.given(GIB)
    asked = Asked(100, gpus=1, gpu_memory=40 * GIB, memory=105 * GIB, states=states)
    _, budget = _budget(asked, 40 * GIB)
    assert (budget.slots, budget.rebuilt, budget.moved) == (24, 0, 76)
    assert budget.host == 76 * GIB
    with pytest.raises(PlanRefused, match="--sessions 39"):
        plan_of(dataclasses.replace(asked, memory=20 * GIB))
    with pytest.raises(PlanRefused, match="--sessions 11"):
        plan_of(Asked(100, memory=20 * GIB, states=states))


def test_a_state_models_other_keys_are_taken_over(repository: Path) -> None:
    """Declarations stay, and numbers are planned."""
    kept = yaml.safe_load((repository / "examples/counter/model-config.yaml").read_text())
    size = StatesSize.of(load_config(kept).state.states)  # type: ignore[union-attr]
    asked = Asked(5000, Profile.CONTINUOUS, gpus=1, gpu_memory=8 * GIB, states=size)
    document = yaml.safe_load(make_plan(asked, kept, "plan").text)
    for key in ("model", "inputs", "outputs", "states"):
        assert document["handler"][key] == kept["handler"][key]
    assert document["handler"]["maxRows"] == 625
    assert "sequenceBatching" not in document


def test_kept_keys_are_checked() -> None:
    """The refusal names a kept key that does not work."""
    with pytest.raises(PlanRefused, match="restartDeadlineSec"):
        make_plan(Asked(5, Profile.SEQUENCE), {"handler": {"restartDeadlineSec": 500}}, "plan")
    with pytest.raises(PlanRefused, match="modle"):
        make_plan(Asked(5), {"handler": {"modle": "x"}}, "plan")


def test_the_command_cannot_leave_its_comment() -> None:
    """The characters of a path cannot change the file."""
    command = "ts-stateful plan --model 'a\nminWorkers: 7\u2028maxWorkers: 7\x85b\x00'"
    document = yaml.safe_load(make_plan(Asked(5), {}, command).text)
    assert document["minWorkers"] == document["maxWorkers"] == 1


def test_dtype_halves_what_a_session_takes(tmp_path: Path) -> None:
    """float32 doubles the bytes of KV states."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    model = read_transformer(tmp_path)
    half = weight(Asked(1, model=model, dtype="bfloat16"))
    full = weight(Asked(1, model=model, dtype="float32"))
    assert half is not None
    assert full is not None
    assert full.evicted == 2 * half.evicted


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"active": 9}, "--active 5"),
        ({"gpu_memory": GIB}, "--gpus"),
        ({"model": LLAVA_7B, "context": 5000}, "--context 4096"),
        ({"model": LLAVA_7B, "session_tokens": 300, "session_image_tokens": 400}, "--tokens 400"),
        ({"idle_min": 0.5}, "--idle 1"),
        ({"model": LLAMA_8B, "memory": 20 * GIB}, "--dtype bfloat16"),
        ({"model": LLAMA_8B, "memory": 8 * GIB}, "--memory 34GiB"),
    ],
)
def test_impossible_requests_are_refused(fields: dict[str, Any], remedy: str) -> None:
    """The refusal names options that work."""
    with pytest.raises(PlanRefused, match=remedy):
        plan_of(Asked(5, **fields))
