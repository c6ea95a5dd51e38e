"""Devices that do not exist, and models that cannot be split over several, are found before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.plans import LLAMA_8B
from ts_stateful.config.check import check_config, check_file, summary
from ts_stateful.config.check.split import check_split, split_problem
from ts_stateful.config.schema import ConfigError, load_config

TENSORS = {key: [{"name": key[0], "shape": [1]}] for key in ("inputs", "outputs", "states")}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 64,
}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"num_key_value_heads": 2}, "2 KV heads cannot be divided by 4"),
        ({"num_key_value_heads": None, "num_attention_heads": 6}, "6 heads cannot be divided by 4"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "recurrent"),
        ({"index_head_dim": 8}, "an index"),
    ],
)
def test_problems_are_named(change: dict[str, Any], problem: str | None) -> None:
    """Heads, and what has states of its own."""
    found = split_problem({**LLAMA, **change}, 4)
    assert found is problem if problem is None else problem in str(found)


def test_the_language_model_is_judged() -> None:
    """Heads of a vision tower do not matter: it stays whole."""
    document = {"text_config": LLAMA, "vision_config": {"num_attention_heads": 3}}
    assert split_problem(document, 4) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"num_key_value_heads": 1}, "1 KV heads cannot be divided by 2"),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "transformers has no plan"),
    ],
)
def test_a_folder_is_checked(change: dict[str, Any], message: str | None, tmp_path: Path) -> None:
    """Its plan, too, where transformers is installed."""
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **change}))
    findings = list(check_split(tmp_path, 2))
    assert [finding.key for finding in findings] == ["handler.tensorParallel"] * bool(message)
    assert message is None or message in findings[0].message
    config = tmp_path / "model-config.yaml"
    handler = {"model": str(tmp_path), "tensorParallel": 2}
    config.write_text(yaml.safe_dump({"continuousBatching": True, "handler": handler}))
    keys = [finding.key for finding in check_file(config)]
    assert keys.count("handler.tensorParallel") == bool(message)


def test_a_single_gpu_cannot_be_shared_by_parts() -> None:
    """The remedy has the variable that chooses GPUs."""
    config = load_config({"handler": {"device": "cuda:1", "tensorParallel": 2}})
    (finding,) = (f for f in check_config(config) if f.key == "handler.tensorParallel")
    assert "CUDA_VISIBLE_DEVICES" in finding.cure


@pytest.mark.parametrize(
    "other", [{"adapters": {"tuned": "folder"}}, {"store": {"kvSpill": True}}], ids=str
)
def test_settings_that_need_whole_states_are_refused(other: dict[str, Any]) -> None:
    """The error names both keys."""
    (key,) = other
    with pytest.raises(ConfigError, match=rf"handler\.tensorParallel: .*handler\.{key}"):
        load_config({"handler": {"tensorParallel": 2, **other}})


def test_the_check_counts_the_bytes_of_a_device() -> None:
    """A token takes the half of them on each of two."""
    handler = {"device": "cuda", "tensorParallel": 2, "deviceCacheBytes": 8 << 30}
    config = load_config({"continuousBatching": True, "handler": handler})
    keys = {finding.key for finding in check_config(config, LLAMA_8B)}
    assert (
        "handler.deviceCacheBytes" not in keys
    )  # a whole context takes 8 GiB on each, 16 GiB in all
    lines = " ".join(summary(config, LLAMA_8B))
    assert "an engine per 2 devices" in lines
    assert "on each of 2 devices: 32 layers x 4 KV heads" in lines
    odd = load_config({"handler": {"tensorParallel": 3}})
    assert any("KV heads cannot be divided by 3" in str(f) for f in check_config(odd, LLAMA_8B))


def found(handler: dict[str, Any]) -> dict[str, str]:
    """Return the errors of a handler by their key, without rules of TorchServe's."""
    findings = check_config(load_config({"handler": handler}), torchserve=False)
    return {
        finding.key: f"{finding.message}; {finding.cure}"
        for finding in findings
        if finding.severity == "error"
    }


@pytest.mark.parametrize("kind", [{}, TENSORS])
@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda1", "GPU 0", ""])
def test_a_device_that_does_not_exist_is_an_error(kind: dict[str, Any], device: str) -> None:
    """Of models of both kinds, before the weights are read."""
    assert f"no device {device!r}" in found({**kind, "device": device})["handler.device"]


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:13"])
def test_the_documented_devices_are_taken(device: str) -> None:
    """A machine without a GPU can check the file of one that has some."""
    assert not found({"device": device})
