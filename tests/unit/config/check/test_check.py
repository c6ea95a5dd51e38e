"""Rules for configurations: errors with a remedy for hangs, leaks and losses, warnings for slowness.

Rules about capacity are in test_capacity.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.weights import NO_WEIGHTS
from ts_stateful.config.check import Finding, check_config, check_file
from ts_stateful.config.edit import edited
from ts_stateful.config.schema import ConfigError, load_config
from ts_stateful.protocol.profile import TORCHSERVE_PROFILES

_GOOD: dict[str, Any] = {
    "minWorkers": 1,
    "maxWorkers": 1,
    "continuousBatching": True,
    "batchSize": 64,
    "maxBatchDelay": 1,
    "startupTimeout": 1200,
}
_SEQUENCE: dict[str, Any] = {
    **{key: value for key, value in _GOOD.items() if key != "continuousBatching"},
    "sequenceBatching": True,
    "maxNumSequence": 63,
    "sequenceMaxIdleMSec": 600_000,
}
_ASYNC: dict[str, Any] = {
    **{key: value for key, value in _GOOD.items() if key != "continuousBatching"},
    "asyncCommunication": True,
    "batchSize": 1,
}


def _found(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(f.severity, f.key) for f in check_config(load_config(document))]


@pytest.mark.parametrize("document", [_GOOD, _SEQUENCE, _ASYNC])
def test_the_three_profiles_pass(document: dict[str, Any]) -> None:
    """A configuration of each profile as documented has no finding."""
    assert _found(document) == []


def test_a_removed_key_names_what_has_its_place() -> None:
    """The message says what to delete and what to use."""
    with pytest.raises(ConfigError, match=r"handler\.engineGroup was removed: `ts-stateful serve`"):
        load_config({**_GOOD, "handler": {"engineGroup": "g"}})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "handler:\n  model: x\nhandler:\n  model: y\n",
            "key 'handler' stands twice, in lines 1 and 3",
        ),
        ("handler: {store: {url: none, url: none}}", "key 'url' stands twice, in lines 1 and 1"),
        ("a: " + "[" * 3000, "it is nested too deeply"),
        ("a: 1\nb: !!timestamp abc\n", "'abc' in line 2 is no timestamp"),
        ("a: !!bool abc\n", "'abc' in line 1 is no bool"),
        ("a: 2024-99-99\n", "'2024-99-99' in line 1 is no timestamp (month must be in 1..12"),
        ("a: !!int abc\n", "'abc' in line 1 is no int"),
        ("a: !!float ''\n", "'' in line 1 is no float"),
        (f"a: {'9' * 5000}\n", "is no int"),
    ],
)
def test_what_yaml_cannot_report_is_an_error(text: str, reason: str, tmp_path: Path) -> None:
    """Of a key that stands twice, all below the first one would be lost. Of a malformed value it has no place."""
    path = tmp_path / "model-config.yaml"
    path.write_text(text)
    [finding] = check_file(path)
    assert (finding.severity, reason in finding.message) == ("error", True), finding
    path.write_text("x: {y: &y {<<: {k: 1}, k: 2}}\nz: {<<: *y, k: 1}\n")
    assert reason not in str(check_file(path))


def test_the_shipped_file_passes_in_every_profile(repository: Path) -> None:
    """model-config.yaml has no finding, also after archive.sh edits it for another profile."""
    document = yaml.safe_load((repository / "model-config.yaml").read_text())
    assert check_file(repository / "model-config.yaml") == []
    for profile in TORCHSERVE_PROFILES:
        assert _found(edited(document, profile=profile)) == []


@pytest.mark.parametrize(
    ("base", "change", "expected"),
    [
        (_GOOD, {"maxWorkers": 2}, ("error", "maxWorkers")),
        (_GOOD, {"minWorkers": 0}, ("error", "minWorkers")),
        (_GOOD, {"continuousBatching": False}, ("error", "continuousBatching")),
        (_GOOD, {"asyncCommunication": True, "batchSize": 1}, ("error", "asyncCommunication")),
        (
            _GOOD,
            {"sequenceBatching": True, "sequenceMaxIdleMSec": 600_000},
            ("warning", "sequenceBatching"),
        ),
        (_GOOD, {"batchSize": 1}, ("warning", "batchSize")),
        (_GOOD, {"maxBatchDelay": 100}, ("warning", "maxBatchDelay")),
        (_GOOD, {"responseTimeout": 5}, ("error", "responseTimeout")),
        (_GOOD, {"responseTimeout": 30}, ("warning", "responseTimeout")),
        (_GOOD, {"startupTimeout": 120}, ("warning", "startupTimeout")),
        (
            _GOOD,
            {"sequenceMaxIdleMSec": 60_000, "sequenceTimeoutMSec": 1000},
            ("warning", "sequenceTimeoutMSec"),
        ),
        (_SEQUENCE, {"maxWorkers": 4}, ("error", "maxWorkers")),
        (_SEQUENCE, {"maxNumSequence": 65}, ("error", "maxNumSequence")),
        (_SEQUENCE, {"maxNumSequence": 64}, ("warning", "batchSize")),
        (_SEQUENCE, {"maxNumSequence": 0}, ("error", "maxNumSequence")),
        (_SEQUENCE, {"sequenceMaxIdleMSec": 0}, ("error", "sequenceMaxIdleMSec")),
        (
            _SEQUENCE,
            {"handler": {"restartDeadlineSec": 120}},
            ("error", "handler.restartDeadlineSec"),
        ),
        (
            _SEQUENCE,
            {"handler": {"drainSec": 60}},
            ("error", "handler.restartDeadlineSec"),
        ),
        (_ASYNC, {"batchSize": 8}, ("error", "batchSize")),
        (_ASYNC, {"maxWorkers": 2}, ("error", "maxWorkers")),
        (_GOOD, {"handler": {"deviceCacheBytes": 2000}}, ("warning", "handler.deviceCacheBytes")),
        (
            _GOOD,
            {"handler": {"device": "cpu", "store": {"kvSpill": True}}},
            ("warning", "handler.store.kvSpill"),
        ),
        (
            _GOOD,
            {"handler": {"store": {"kvSpill": True, "content": "none"}}},
            ("warning", "handler.store.kvSpill"),
        ),
        (
            _GOOD,
            {"handler": {"device": "cpu", "hostCacheBytes": 1 << 30}},
            ("warning", "handler.hostCacheBytes"),
        ),
        (
            _GOOD,
            {"handler": {"contextLength": 128, "prefillChunk": 129}},
            ("warning", "handler.prefillChunk"),
        ),
        (_GOOD, {"handler": {"reattachSec": 90}}, ("warning", "handler.engineLingerSec")),
        (
            _GOOD,
            {"handler": {"reattachSec": 700, "engineLingerSec": 701}},
            ("warning", "handler.reattachSec"),
        ),
        (_GOOD, {"handler": {"trustRemoteCode": True}}, ("warning", "handler.trustRemoteCode")),
        (
            _GOOD,
            {"handler": {"media": {"allowedSchemes": ["http"]}}},
            ("warning", "handler.media.allowedSchemes"),
        ),
        (
            _GOOD,
            {
                "handler": {
                    "store": {"url": "s3://bucket/sessions"},
                    "media": {"allowedBuckets": ["photos", "bucket"]},
                }
            },
            ("warning", "handler.media.allowedBuckets"),
        ),
        (
            _GOOD,
            {"handler": {"media": {"allowPrivateAddresses": True}}},
            ("warning", "handler.media.allowPrivateAddresses"),
        ),
        (
            _GOOD,
            {"handler": {"allowedOrigins": ["*"]}},
            ("warning", "handler.allowedOrigins"),
        ),
    ],
)
def test_a_bad_combination_is_reported(
    base: dict[str, Any], change: dict[str, Any], expected: tuple[str, str]
) -> None:
    """With its key and severity."""
    assert expected in _found({**base, **change})


def test_several_workers_are_refused_with_a_remedy() -> None:
    """The message has the reason, and the remedy is several engines."""
    [finding] = check_config(load_config({**_GOOD, "maxWorkers": 3}))
    assert "stall" in finding.message
    assert "engines: N" in finding.cure


def test_errors_come_first() -> None:
    """Findings are sorted by severity."""
    found = _found({**_GOOD, "maxBatchDelay": 50, "maxWorkers": 2})
    assert found == [("error", "maxWorkers"), ("warning", "maxBatchDelay")]


def test_a_finding_reads_as_one_line() -> None:
    """str() joins severity, key, reason and remedy."""
    assert str(Finding("error", "a", "is wrong", "right it")) == "error: a: is wrong; right it"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not a valid YAML file"),
        ("- a\n- b\n", "is not a mapping"),
        ("handler:\n  modle: x\n", "modle"),
        ("batchSize: many\n", "batchSize"),
    ],
)
def test_a_broken_file_is_a_finding(tmp_path: Path, text: str, message: str) -> None:
    """Syntax, unknown keys and wrong types are findings, not exceptions."""
    path = tmp_path / "model-config.yaml"
    path.write_text(text)
    [finding] = check_file(path)
    assert finding.severity == "error"
    assert message in finding.message


def test_a_missing_file_is_a_finding(tmp_path: Path) -> None:
    """The path is reported."""
    [finding] = check_file(tmp_path / "none.yaml")
    assert "cannot be read" in finding.message


def test_an_empty_file_is_completed(tmp_path: Path) -> None:
    """TorchServe's defaults have no safe mode; what packs and serves the file adds one."""
    path = tmp_path / "model-config.yaml"
    path.write_text("")
    assert check_config(load_config({}))[0].key == "continuousBatching"
    assert not check_file(path)


@pytest.mark.parametrize(
    ("handler", "severity", "part"),
    [
        ({"model": "~nosuchuser/x"}, "error", "~nosuchuser has no home here"),
        ({"adapters": {"a": "~nosuchuser/x"}}, "error", "~nosuchuser has no home here"),
        ({"store": {"url": "redis://[::1/0"}}, "error", "handler.store: `url` has to be one of"),
        ({"store": {"url": "redis://h:abc/0"}}, "error", "handler.store: `url` has to be one of"),
        ({"store": {"url": "redis://h:99999"}}, "error", "handler.store: `url` has to be one of"),
        ({"store": {"url": "redis://h:1,h:x/0"}}, "error", "handler.store: `url` has to be one of"),
        (
            {"auth": {"mode": "jwt", "issuer": "a", "audience": "b", "jwks": "https://[x"}},
            "error",
            "handler.auth: `jwks` is neither a URL nor a file: 'https://[x'",
        ),
        ({"chatTemplate": "a\n{% if %}"}, "error", "handler.chatTemplate: line 2 of it: "),
        ({"chatTemplate": "a.jinja"}, "error", "handler.chatTemplate: line 1 of "),
        ({"chatTemplate": "b.jinja"}, "warning", "handler.chatTemplate: b.jinja is no file here"),
    ],
)
def test_a_value_that_cannot_work_is_found(
    handler: dict[str, Any], severity: str, part: str, tmp_path: Path
) -> None:
    """By its key, and without a trace."""
    path = tmp_path / "model-config.yaml"
    path.write_text(json.dumps({"handler": {"model": "owner/name", **handler}}))
    (tmp_path / "a.jinja").write_text("{{")
    [finding] = check_file(path)
    assert finding.severity == severity
    assert part in str(finding)


@pytest.mark.parametrize("named", ["in the configuration", "as a model"])
def test_pickled_weights_are_found_before_the_server_starts(tmp_path: Path, named: str) -> None:
    """In the folder that `handler.model` names, beside the file or anywhere, or in one that is given."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"")
    config = {"model_type": "llava", "vision_config": {}}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    path = tmp_path / "model-config.yaml"
    model = "model" if named == "in the configuration" else "owner/name"
    path.write_text(
        f"minWorkers: 1\nmaxWorkers: 1\ncontinuousBatching: true\nhandler:\n  model: {model}\n"
    )
    given = None if model == "model" else tmp_path / "model"
    [finding] = [one for one in check_file(path, model_folder=given) if one.severity == "error"]
    assert finding.key == "handler.model"
    assert "pytorch_model.bin" in finding.message
    assert "AutoModelForImageTextToText" in finding.cure
    (tmp_path / "model" / "model.safetensors").write_bytes(NO_WEIGHTS)
    assert not [one for one in check_file(path, model_folder=given) if one.severity == "error"]


LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
PAIR = (f"{LAYER}.lora_A.weight", f"{LAYER}.lora_B.weight")


def write_adapter(folder: Path, names: tuple[str, ...] = PAIR, **settings: Any) -> None:
    """The files that `peft` saves, as far as they are read here."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **settings}))
    tensors = {name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in names}
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    weights = len(header).to_bytes(8, "little") + header
    (folder / "adapter_model.safetensors").write_bytes(weights)


def findings(folder: Path, adapters: dict[str, str]) -> list[Finding]:
    """Those of a configuration with these adapters."""
    path = folder / "model-config.yaml"
    path.write_text(json.dumps({"handler": {"model": "owner/name", "adapters": adapters}}))
    return [found for found in check_file(path) if "adapters" in found.key]


def test_an_adapter_beside_the_configuration_is_read(tmp_path: Path) -> None:
    """By a relative path or another one; one that is not here may be where the server runs."""
    write_adapter(tmp_path / "adapters" / "red")
    known = {"red": "adapters/red", "blue": str(tmp_path / "adapters" / "red")}
    assert not findings(tmp_path, known)
    [found] = findings(tmp_path, {**known, "green": "adapters/green"})
    assert found.severity == "warning"
    assert str(found).startswith("warning: handler.adapters: green: adapters/green is not a folder")


@pytest.mark.parametrize(
    ("names", "settings", "reason"),
    [
        (PAIR, {"use_dora": True}, "`use_dora` True is not supported"),
        (PAIR, {"peft_type": "IA3"}, "`peft_type` 'IA3' is not supported"),
        (PAIR[:1], {}, "has only one of A and B of `model.layers.0.self_attn.q_proj`"),
        (("lm_head.weight",), {}, "`lm_head.weight` is not the change of a linear layer"),
        ((), {}, "is empty"),
    ],
)
def test_what_the_engine_would_refuse_is_an_error(
    names: tuple[str, ...], settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """With the same reason."""
    write_adapter(tmp_path / "red", names, **settings)
    [found] = findings(tmp_path, {"red": "red"})
    assert found.severity == "error"
    assert reason in found.message


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, b"\x02\0\0\0\0\0\0\0[]"])
def test_damaged_files_are_errors(content: bytes, tmp_path: Path) -> None:
    """Without a traceback."""
    write_adapter(tmp_path / "red")
    (tmp_path / "red" / "adapter_model.safetensors").write_bytes(content)
    [found] = findings(tmp_path, {"red": "red"})
    assert found.severity == "error"
