"""`ts-stateful plan` and `check --model`, without a server, a GPU or torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from ts_stateful.cli import main

_LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
}


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """Write the config.json of a model with 1.2 billion weights."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(_LLAMA))
    return path


def test_a_plan_is_a_file_that_the_check_passes(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output has the file, standard error the sessions that do not fit."""
    options = "--sessions 500 --gpus 4 --gpu-memory 80GiB --context 32768"
    assert main(["plan", *options.split(), "--model", str(llama)]) == 0
    out, err = capsys.readouterr()
    assert "16 layers x 8 KV heads x (64 + 64) x 2 bytes (bfloat16) = 32,768 bytes a token" in out
    assert f"--model {llama}" in " ".join(out.replace("#", "").split())
    assert "warning: not all sessions fit: of 500, 228 stay on the device" in err
    planned = tmp_path / "model-config.yaml"
    planned.write_text(out)
    assert main(["check", str(planned), "--model", str(llama)]) == 0
    out = capsys.readouterr().out
    assert "holds: 500 sessions on 4 engines, up to 125 each" in out
    assert out.endswith("\nok\n")


def test_a_plan_without_a_model_is_about_torchserve_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A warning names the missing options."""
    assert main(["plan", "--sessions", "20"]) == 0
    out, err = capsys.readouterr()
    document = yaml.safe_load(out)
    assert document["maxNumSequence"] == 20
    assert "deviceCacheBytes" not in document["handler"]
    assert "give --model" in err


def test_a_configuration_to_start_from(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its profile, times and declarations stay unless options say otherwise."""
    counter = str(repository / "examples" / "counter" / "model-config.yaml")
    before = yaml.safe_load(Path(counter).read_text())
    assert main(["plan", "--sessions", "40", "--config", counter]) == 0
    document = yaml.safe_load(capsys.readouterr().out)
    assert document["sequenceBatching"] is True
    for key in ("sequenceMaxIdleMSec", "maxSequenceJobQueueSize"):
        assert document[key] == before[key]
    assert document["handler"]["states"] == before["handler"]["states"]
    options = ["--profile", "async", "--idle", "3", "--memory", "8GiB"]
    assert main(["plan", "--sessions", "40", "--config", counter, *options]) == 0
    document = yaml.safe_load(capsys.readouterr().out)
    assert (document["asyncCommunication"], document["sequenceMaxIdleMSec"]) == (True, 180_000)
    assert document["handler"]["maxRows"] == 40


def test_rows_of_an_exported_program_stay(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `fixedRows` a pass has `maxRows` rows, by default 256, however few the sessions are."""
    document = yaml.safe_load((repository / "examples/counter/model-config.yaml").read_text())
    document["handler"]["fixedRows"] = True
    config = tmp_path / "model-config.yaml"
    config.write_text(yaml.safe_dump(document))
    assert main(["plan", "--sessions", "40", "--memory", "8GiB", "--config", str(config)]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["handler"]["maxRows"] == 256


def test_adapters_of_the_configuration_are_counted(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the dtype of the weights; one that is only in the archive gets a warning."""
    config = tmp_path / "model-config.yaml"
    options = (
        f"--sessions 40 --model {llama} --weights 2GiB --memory 8GiB --config {config}".split()
    )
    planned = []
    for adapters in ({}, {"near": "near", "far": "far"}):
        config.write_text(yaml.safe_dump({"handler": {"adapters": adapters}}))
        if adapters:
            folder = tmp_path / "near"
            folder.mkdir()
            (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
            layer = "base_model.model.model.layers.0.self_attn.q_proj"
            save_file(
                {
                    f"{layer}.lora_A.weight": np.zeros((16_384, 2048), np.float32),
                    f"{layer}.lora_B.weight": np.zeros((2048, 16_384), np.float32),
                },
                folder / "adapter_model.safetensors",
            )
        assert main(["plan", *options]) == 0
        out, err = capsys.readouterr()
        planned.append(yaml.safe_load(out)["handler"]["deviceCacheBytes"])
        assert ("the adapter far has no folder here" in err) is bool(adapters)
        assert "near" not in err
    assert planned[0] - planned[1] == pytest.approx(0.8 * 4 * 2 * 16_384 * 2048, rel=0.02)


def test_bytes_of_a_state_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    """The model may lack its declarations."""
    options = "--sessions 40 --gpus 1 --gpu-memory 16GiB --state-bytes 100MiB"
    assert main(["plan", *options.split()]) == 0
    out = capsys.readouterr().out
    table = " ".join(out.replace("#", "").split())
    assert "on a device 40 of 40 sessions" in table
    assert "inputs, outputs and states" in out


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ("--sessions 5 --model no/such/folder", 1, "neither a folder"),
        ("--sessions 5 --config none.yaml", 1, "give a readable file"),
        ("--sessions 5 --model {model} --memory 4GiB", 1, "ask for --memory 7GiB"),
        ("--sessions 5 --model {model} --state-bytes 5", 1, "--model is for language models"),
        ("--sessions 90000 --profile sequence", 1, "--profile continuous"),
        ("", 2, "--sessions"),
        ("--sessions 0", 2, "from 1 to"),
        ("--sessions many", 2, "is not a"),
        ("--sessions 5 --idle nan", 2, "above 0"),
        ("--sessions 5 --idle soon", 2, "is not a"),
        ("--sessions 5 --memory 4gigs", 2, "write 80GiB"),
        ("--sessions 5 --memory 0", 2, "from 1 to"),
    ],
)
def test_a_refusal_is_one_line(
    options: str, status: int, message: str, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1 is for impossible requests, 2 for wrong usage; standard output stays empty."""
    arguments = ["plan", *options.format(model=llama).split()]
    if status == 2:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    else:
        assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    if status == 1:
        assert err.startswith("error: ")
        assert err.count("\n") == 1


def test_a_model_of_the_hub_is_described_by_its_config_alone(tmp_path: Path) -> None:
    """The hub's cache is enough; a missing model is refused with a remedy."""
    repository = tmp_path / "models--owner--name"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(_LLAMA))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    environ = {**os.environ, "HF_HUB_CACHE": str(tmp_path)}

    def plan(model: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ts_stateful.cli", "plan", "--sessions", "5", "--model"]
        return subprocess.run(
            [*command, model], env=environ, capture_output=True, text=True, check=False
        )

    found = plan("owner/name")
    assert found.returncode == 0, found.stderr
    assert yaml.safe_load(found.stdout)["handler"]["model"] == "owner/name"
    missing = plan("owner/other")
    assert missing.returncode == 1
    assert "download it and give its path" in missing.stderr


def test_a_plan_as_json(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its configuration is that of the file, and its warnings are part of the document."""
    command = ["plan", "--sessions", "20", "--model", str(llama)]
    assert main(command) == 0
    plain = yaml.safe_load(capsys.readouterr().out)
    assert main([*command, "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["config"], printed.err) == (plain, "")
    assert isinstance(document["warnings"], list)
