"""Planned files for each profile, for language models and for models with states; the check accepts them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.plans import GIB, LLAMA_8B, LLAVA_7B, STATES, document_of, plan_of
from ts_stateful.config.check import check_config
from ts_stateful.config.schema import ConfigError, load_config
from ts_stateful.config.sizes import StatesSize, TransformerSize
from ts_stateful.plan import Asked, Plan, PlanRefused, make_plan
from ts_stateful.protocol.profile import TORCHSERVE_PROFILES, Profile

_TINY = TransformerSize(2, 1, 8, 8, 16, 3, 512, None, 4000, True)
_CURE = re.compile(
    r"--(image-tokens|sessions|active|tokens|context|gpu-memory|gpus|memory|idle|profile|tensor-parallel) ([\w.]+)"
)
_FIELDS = {
    "image-tokens": "session_image_tokens",
    "tokens": "session_tokens",
    "gpu-memory": "gpu_memory",
    "idle": "idle_min",
    "tensor-parallel": "split",
}
_sizes = st.one_of(st.none(), st.integers(1, 1 << 20), st.integers(1, 1 << 42))
_anything = st.fixed_dictionaries(
    {
        "sessions": st.one_of(st.integers(1, 20), st.integers(1, 20_000)),
        "profile": st.sampled_from(TORCHSERVE_PROFILES),
        "gpus": st.sampled_from([0, 1, 2, 4, 8, 64]),
        "active": st.one_of(st.none(), st.integers(1, 2000)),
        "dtype": st.sampled_from(["auto", "float32", "float16"]),
        "memory": _sizes,
        "gpu_memory": _sizes,
        "weight_bytes": st.one_of(st.none(), st.integers(1, 1 << 40)),
        "idle_min": st.one_of(st.integers(1, 100), st.floats(0.01, 40_000)),
        "opened_per_min": st.floats(0, 5000),
    }
)
_of_a_model = st.fixed_dictionaries(
    {
        "model": st.sampled_from([LLAMA_8B, LLAVA_7B, _TINY]),
        "context": st.one_of(st.none(), st.integers(1, 200_000)),
        "session_tokens": st.one_of(st.none(), st.integers(1, 200_000)),
        "session_image_tokens": st.one_of(st.none(), st.integers(0, 3000)),
        "split": st.sampled_from([1, 1, 2]),
    }
)
_of_states = st.fixed_dictionaries(
    {
        "states": st.one_of(
            st.builds(StatesSize.given, st.integers(1, 1 << 34)),
            st.just(StatesSize.of(load_config(STATES).state.states)),  # type: ignore[union-attr]
        ),
        "max_rows": st.one_of(st.none(), st.integers(1, 5000)),
    }
)
_asked = st.tuples(_anything, st.one_of(_of_a_model, _of_states, st.just({})))


def _handler(asked: Asked) -> dict[str, Any]:
    handler: dict[str, Any] = document_of(plan_of(asked))["handler"]
    return handler


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
    assert "on a device 23 of 125 sessions" in comments
    [warning] = [text for text in plan.warnings if "not all sessions fit" in text]
    assert "are computed again when they continue" in warning


@pytest.mark.parametrize("profile", TORCHSERVE_PROFILES)
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


def test_a_split_model_is_planned_by_the_bytes_of_one_gpu() -> None:
    """Twice the tokens stay; host memory is that of all parts."""
    asked = Asked(
        500, gpus=4, gpu_memory=80 * GIB, memory=256 * GIB, model=LLAVA_7B, context=4096, split=2
    )
    handler = document_of(plan_of(asked))["handler"]
    assert (handler["engines"], handler["tensorParallel"]) == (2, 2)
    whole = document_of(plan_of(replace(asked, split=1)))["handler"]
    assert whole["deviceCacheBytes"] < handler["deviceCacheBytes"] < 80 * GIB
    assert handler["hostCacheBytes"] >= whole["hostCacheBytes"]


def test_a_large_model_has_time_to_load() -> None:
    """Timeouts grow with the bytes that all engines read from one disk."""
    handler = _handler(Asked(8, gpus=8, weight_bytes=140_000_000_000))
    assert handler["loadTimeoutSec"] == 5760
    assert document_of(plan_of(Asked(8)))["startupTimeout"] == 1200


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        (Asked(50, gpus=1, gpu_memory=80 * GIB, model=LLAVA_7B), 1),
        (Asked(50, memory=80 * GIB, model=LLAMA_8B), 1),
        (Asked(50, gpus=1, gpu_memory=80 * GIB, states=StatesSize.given(4 * GIB)), 1),
        (Asked(9, gpus=1, gpu_memory=18 * GIB, model=LLAMA_8B), 2),
    ],
)
def test_warnings_name_options_that_work(asked: Asked, count: int) -> None:
    """Sessions that leave the device, and turns without room on it, are reported with a remedy for each."""
    found = [text for text in plan_of(asked).warnings if _CURE.search(text.rpartition("; ")[2])]
    assert len(found) == count
    for warning in found:
        [(name, value)] = _CURE.findall(warning.rpartition("; ")[2])
        field: dict[str, Any] = {_FIELDS.get(name, name): _value(name, value)}
        better = replace(asked, **field)
        assert warning[:20] not in [text[:20] for text in plan_of(better).warnings]


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
    with pytest.raises(ConfigError, match="restartDeadlineSec"):
        make_plan(Asked(5, Profile.SEQUENCE), {"handler": {"restartDeadlineSec": 500}}, "plan")
    with pytest.raises(ConfigError, match="modle"):
        make_plan(Asked(5), {"handler": {"modle": "x"}}, "plan")


def test_the_command_cannot_leave_its_comment() -> None:
    """The characters of a path cannot change the file."""
    command = "ts-stateful plan --model 'a\nminWorkers: 7\u2028maxWorkers: 7\x85b\x00'"
    document = yaml.safe_load(make_plan(Asked(5), {}, command).text)
    assert document["minWorkers"] == document["maxWorkers"] == 1


@settings(max_examples=100)
@given(_asked, st.data())
def test_accepted_requests_work_and_refusals_name_options_that_work(
    parts: tuple[dict[str, Any], dict[str, Any]], data: st.DataObject
) -> None:
    """The check finds no error in a plan, and following the refusals leads to a plan."""
    fields = {**parts[0], **parts[1]}
    if not fields["gpus"]:
        fields["gpu_memory"] = None
    for _ in range(8):
        plan = _plan_or_reason(fields)
        if isinstance(plan, Plan):
            break
        cures = _CURE.findall(plan.rpartition("; ")[2])
        assert cures, plan
        name, value = data.draw(st.sampled_from(cures))
        fields[_FIELDS.get(name, name)] = _value(name, value)
    assert isinstance(plan, Plan), "the cures go round in circles"
    document = document_of(plan)
    findings = check_config(load_config(document), fields.get("model"))
    assert [finding for finding in findings if finding.severity == "error"] == []
    assert document["maxNumSequence"] >= fields["sessions"]
    assert document["handler"]["engines"] <= max(1, fields["gpus"])


def _plan_or_reason(fields: dict[str, Any]) -> Plan | str:
    try:
        return plan_of(Asked(**fields))
    except PlanRefused as refused:
        return str(refused)


def _value(name: str, text: str) -> object:
    if name == "profile":
        return Profile(text)
    if name in ("gpu-memory", "memory"):
        return int(text.removesuffix("GiB")) * GIB
    return int(text)
