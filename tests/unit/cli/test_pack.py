"""`ts-stateful pack`, with the real torch-model-archiver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.weights import NO_WEIGHTS
from tests.support.worker import eventually
from ts_stateful.cli.main import main

_CLASS = "class Sum: ..."
_STATES: dict[str, Any] = {
    "inputs": [{"name": "number", "datatype": "INT64", "shape": [1]}],
    "outputs": [{"name": "sum", "datatype": "INT64", "shape": [1]}],
    "states": [{"name": "total", "datatype": "INT64", "shape": [1]}],
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a model's."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(NO_WEIGHTS)
    return folder


def test_a_folder_without_a_configuration(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is packed with safe values, and the path is all of the output; warnings are elsewhere."""
    assert main(["pack", str(model), "--name", "mine", "--output", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'out' / 'mine.mar'}\n"
    assert "chat template" in err
    with zipfile.ZipFile(out.strip()) as archive:
        names = archive.namelist()
        document = yaml.safe_load(archive.read("model-config.yaml"))
    assert {"model/config.json", "generation_handler.py"} <= set(names)
    assert document["handler"] == {"model": "model"}
    assert (document["minWorkers"], document["continuousBatching"]) == (1, True)


def test_a_link_to_nothing_is_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of weights in a cache that was moved."""
    (model / "more.safetensors").symlink_to(tmp_path / "none")
    assert main(["pack", str(model), "--output", str(tmp_path)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
        error == f"error: {model}/more.safetensors is a link to {tmp_path}/none, which is missing"
    )


def test_a_configuration_that_cannot_be_read_is_named(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here one with a key that stands twice."""
    (model / "model-config.yaml").write_text("batchSize: 1\nbatchSize: 2\n")
    assert main(["pack", str(model)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {model}/model-config.yaml: is not a valid YAML file: the key")


def test_a_folder_of_programs_is_no_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the option for it."""
    assert main(["pack", str(tmp_path)]) == 1
    assert "no config.json: not a model's folder; `pack --files`" in capsys.readouterr().err


def test_a_folder_with_a_configuration_of_its_own(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It counts, unless another one is given; its profile stays."""
    (model / "model-config.yaml").write_text("sequenceBatching: true\nhandler: {threads: 3}\n")
    other = tmp_path / "other.yaml"
    other.write_text("handler: {threads: 4}\n")
    found = []
    for options in ([], ["--config", str(other)]):
        arguments = ["pack", str(model), "--format", "no-archive", "--output", str(tmp_path)]
        assert main([*arguments, *options]) == 0
        folder = Path(capsys.readouterr().out.strip())
        document = yaml.safe_load((folder / "model-config.yaml").read_text())
        found.append((document["handler"]["threads"], "sequenceBatching" in document))
    assert found == [(3, True), (4, False)]


def test_a_class_is_packed_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the entry point for recurrent states; `--files` adds others, but replaces nothing."""
    file, config, files = tmp_path / "sum.py", tmp_path / "c.yaml", tmp_path / "files"
    file.write_text(_CLASS)
    config.write_text(json.dumps({"sequenceBatching": True, "handler": _STATES}))
    (files / "ts_stateful").mkdir(parents=True)
    (files / "weights.safetensors").write_text("weights")
    (files / "sum.py").write_text(_CLASS)
    (files / ".hidden").write_text("x")
    arguments = ["pack", f"{file}:Sum", "--config", str(config), "--files", str(files)]
    arguments += ["--output", str(tmp_path / "out")]
    assert main(arguments) == 0
    with zipfile.ZipFile(capsys.readouterr().out.strip()) as archive:
        names = set(archive.namelist())
        document = yaml.safe_load(archive.read("model-config.yaml"))
    assert {"sum.py", "weights.safetensors", "state_handler.py"} <= names
    assert not any(".hidden" in name for name in names)
    assert document["handler"]["model"] == "sum.py:Sum"
    (files / "ts_stateful" / "version.py").write_text("0")
    assert main(arguments) == 1
    assert "version.py is a name of the package's own" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["chat.mar"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nothing"], "nothing: no such file or folder, and neither a hub id"),
        ([""], "'': no such file or folder"),
        (["~nosuchuser/x"], "~nosuchuser has no home here"),
        (["~nosuchuser/x.py:Sum"], "~nosuchuser has no home here"),
        (["--config", "{empty}"], "handler.model: model is not packed"),
        (["--files", "."], "handler.model: model is not packed"),
        (["."], ". has no config.json"),
        (["none.py:Sum"], "no such file: none.py"),
        (["a/sum.py"], "a/sum.py names no class: write a/sum.py:Class"),
        (["{wrong}"], "wrong.yaml is a file: name a folder"),
        (["{file}:Sum"], "has no states: declare `handler.inputs`"),
        (["a/b", "--files", "none"], "no such folder: none"),
        (["a/b", "--config", "{wrong}"], "handler.modle: there is no such key"),
        (["a/b", "--config", "{template}"], "handler.chatTemplate: line 1 of it: "),
        (["a/b", "--config", "{named}", "--files", "files"], "handler.chatTemplate: line 1 of "),
    ],
)
def test_what_cannot_be_packed(
    arguments: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line has the reason, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    file, wrong = tmp_path / "sum.py", tmp_path / "wrong.yaml"
    file.write_text(_CLASS)
    wrong.write_text("handler: {modle: x}")
    (empty := tmp_path / "empty.yaml").touch()
    (template := tmp_path / "template.yaml").write_text("handler: {chatTemplate: '{{'}")
    (named := tmp_path / "named.yaml").write_text("handler: {chatTemplate: a.jinja}")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.jinja").write_text("{{")
    places = {"file": file, "wrong": wrong, "empty": empty, "template": template, "named": named}
    given = [argument.format(**places) for argument in arguments]
    assert main(["pack", *given, "--output", str(tmp_path / "out")]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert reason in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_nothing_cannot_be_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An archive without a model would not load."""
    assert main(["pack", "--output", str(tmp_path)]) == 1
    assert "name the MODEL" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("handler", "finding"),
    [
        ({"model": "owner/name"}, ""),
        ({"model": "/models/x"}, ""),
        ({"model": "packed"}, ""),
        ({"model": "gpt2"}, "warning: handler.model: gpt2 is not packed, but taken for a hub id"),
        ({"model": "./model"}, "error: handler.model: ./model is not packed"),
        ({"model": "sum.py:Sum", **_STATES}, "error: handler.model: sum.py:Sum is not packed"),
        ({"model": "packed/sum.py:Sum", **_STATES}, ""),
    ],
)
def test_the_model_of_a_configuration_that_is_not_packed(
    handler: dict[str, Any], finding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be on the hub, where the server runs, or among the files."""
    (config := tmp_path / "c.yaml").write_text(
        json.dumps({"sequenceBatching": True, "handler": handler})
    )
    (tmp_path / "files" / "packed").mkdir(parents=True)
    (tmp_path / "files" / "packed" / "sum.py").write_text(_CLASS)
    arguments = ["--config", str(config), "--files", str(tmp_path / "files")]
    failed = main(["pack", *arguments, "--output", str(tmp_path / "out")])
    assert failed == finding.startswith("error")
    assert capsys.readouterr().err.startswith(finding)


def test_a_link_to_a_folder_that_holds_it(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The archiver would copy the folder forty times."""
    (model / "loop").symlink_to(".")
    assert main(["pack", str(model), "--output", str(tmp_path / "out")]) == 1
    assert "loop is a link to a folder that holds it" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_archiver_ends_with_the_command(
    number: signal.Signals, model: Path, tmp_path: Path
) -> None:
    """A terminated command removes its copy of the model; a killed one cannot."""
    (fake := tmp_path / "fake" / "model_archiver").mkdir(parents=True)
    (fake / "__init__.py").touch()
    (fake / "model_packaging.py").write_text(
        "import os, time\ndef generate_model_archive():\n    print(os.getpid(), file=open('pid', 'w'))\n    time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "ts_stateful.cli", "pack", str(model), "--output", "out"]
    environ = {**os.environ, "PYTHONPATH": str(fake.parent)}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE) as process:
        eventually(lambda: (tmp_path / "pid").is_file() and bool((tmp_path / "pid").read_text()))
        process.send_signal(number)
        _, errors = process.communicate()
    archiver = Path("/proc") / (tmp_path / "pid").read_text().strip() / "cmdline"
    eventually(lambda: not archiver.exists() or not archiver.read_bytes())  # a zombie has none
    if number == signal.SIGTERM:
        assert process.returncode == 143
        assert b"Traceback" not in errors
        assert not list((tmp_path / "out").iterdir())


def test_an_error_of_the_archiver_is_reported(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the first reason in the last line of its trace; and what it had begun is removed."""
    os.mkfifo(model / "pipe")
    os.mkfifo(model / "another")
    assert main(["pack", str(model), "--output", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: torch-model-archiver failed: ")
    assert error.count("is a named pipe") == 1
    assert "Traceback" not in error
    assert not list((tmp_path / "out").iterdir())
