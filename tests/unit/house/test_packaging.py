"""What is tested is what is shipped: wheel, archive and source tree hold the same modules."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml

from tests.support.weights import NO_WEIGHTS

_MODEL_FILES = {
    "config.json": '{"model_type": "llama"}',
    "tokenizer.json": "{}",
    "model.safetensors": NO_WEIGHTS.decode(),
    ".cache/x": "hidden",
}


def _run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHON": sys.executable, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )


def _code(names: list[str]) -> set[str]:
    """What runs, of a list of names; stubs for type checkers are in the wheel alone."""
    return {
        name
        for name in names
        if name.startswith(("ts_stateful/", "generation_handler"))
        and not name.endswith(("/", ".pyi"))
    }


@pytest.fixture(scope="module")
def wheel_file(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that no stale build/ lends files to it."""
    copy = tmp_path_factory.mktemp("wheel")
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, copy)
    # Into caches other processes write at any time, by files that do not stay.
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(repository / "handlers", copy / "handlers", ignore=ignored)
    backend = "import setuptools.build_meta as b; print(b.build_wheel('.'))"
    done = _run(sys.executable, "-W", "ignore", "-c", backend, cwd=copy)
    assert done.returncode == 0, done.stderr
    [path] = copy.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(wheel_file: Path) -> set[str]:
    """The code in the wheel."""
    with zipfile.ZipFile(wheel_file) as archive:
        return _code(archive.namelist())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like a model's."""
    folder = tmp_path_factory.mktemp("a model")
    for name, text in _MODEL_FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def mar(repository: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """build/chat.mar as archive.sh makes it, elsewhere."""
    output = tmp_path_factory.mktemp("mar")
    done = _run(
        str(repository / "archive.sh"), "--model", str(model), "--output", str(output), cwd=model
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(output / "chat.mar")
    assert [path.name for path in output.iterdir()] == ["chat.mar"]
    return output / "chat.mar"


def test_wheel_archive_and_tree_hold_the_same(repository: Path, wheel: set[str], mar: Path) -> None:
    """No module is forgotten in one of them, and none is shipped that is not in the tree."""
    handlers = repository / "handlers"
    tree = {
        str(path.relative_to(handlers))
        for pattern in (
            "*.py",
            "*.cpp",
            "*.h",
            "*.class",
            "*.java",
            "*.css",
            "*.js",
            "*.properties",
            "*.xml",
            "py.typed",
        )
        for path in handlers.rglob(pattern)
        if "egg-info" not in str(path)
    }
    with zipfile.ZipFile(mar) as archive:
        packed = _code(archive.namelist())
    assert packed == wheel == {name for name in tree if name in packed | wheel}
    assert {name for name in tree if name.startswith("ts_stateful/")} <= wheel


def test_the_page_of_the_wheel_has_absolute_links(repository: Path, wheel_file: Path) -> None:
    """Its description is the README; each link and image leads to the files of the version's tag."""
    with zipfile.ZipFile(wheel_file) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = str(metadata.get_payload())
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", text)
    assert len(links) > 30
    assert [link for _, link in links if not link.startswith("https://")] == []
    raw = f"raw.githubusercontent.com/torchserve-stateful/torchserve-stateful/v{metadata['Version']}/docs/"
    assert {raw in link for image, link in links if image} == {True}
    ours = [link for _, link in links if f"/v{metadata['Version']}/" in link]
    files = [link.partition(f"/v{metadata['Version']}/")[2].partition("#")[0] for link in ours]
    assert [file for file in files if not (repository / file).is_file()] == []


def test_the_wheel_is_typed_and_has_its_command(wheel_file: Path) -> None:
    """Type checkers read its annotations, and pip makes `ts-stateful`."""
    with zipfile.ZipFile(wheel_file) as archive:
        names = archive.namelist()
        (entry,) = [one for one in names if one.endswith(".dist-info/entry_points.txt")]
        assert "ts-stateful = ts_stateful.cli:main" in archive.read(entry).decode()
    assert "ts_stateful/py.typed" in names


def test_the_archive_holds_code_model_and_configuration_only(mar: Path) -> None:
    """No caches, no metadata, no requirements.txt (TorchServe would reinstall torch); root names are unique."""
    with zipfile.ZipFile(mar) as archive:
        names = archive.namelist()
        manifest = json.loads(archive.read("MAR-INF/MANIFEST.json"))
        config = yaml.safe_load(archive.read("model-config.yaml"))
    assert {name.split("/")[0] for name in names} == {
        "MAR-INF",
        "generation_handler.py",
        "model",
        "model-config.yaml",
        "ts_stateful",
    }
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert {name for name in names if name.startswith("model/")} == {
        "model/config.json",
        "model/model.safetensors",
        "model/tokenizer.json",
    }
    assert manifest["model"]["handler"] == "generation_handler.py"
    assert manifest["model"]["configFile"] == "model-config.yaml"
    assert config["handler"]["model"] == "model"


def test_the_entry_module_defines_exactly_one_class(repository: Path) -> None:
    """TorchServe takes the only class of the entry module, and refuses several."""
    tree = ast.parse((repository / "handlers" / "generation_handler.py").read_text())
    assert [node.name for node in tree.body if isinstance(node, ast.ClassDef)] == [
        "GenerationHandler"
    ]


def test_a_folder_archive_replaces_an_older_one_and_nothing_else(
    repository: Path, tmp_path: Path
) -> None:
    """`--format no-archive` leaves no stale file behind, and does not delete what is no archive."""
    command = [str(repository / "archive.sh"), "--model", "owner/name", "--format", "no-archive"]
    command += ["--profile", "sequence", "--output", str(tmp_path)]
    assert _run(*command, cwd=tmp_path).returncode == 0
    stale = tmp_path / "chat" / "stale.py"
    stale.touch()
    assert _run(*command, cwd=tmp_path).returncode == 0
    assert not stale.exists()
    config = yaml.safe_load((tmp_path / "chat" / "model-config.yaml").read_text())
    assert config["handler"]["model"] == "owner/name"
    assert config["sequenceBatching"] is True
    (tmp_path / "chat" / "MAR-INF" / "MANIFEST.json").unlink()
    refused = _run(*command, cwd=tmp_path)
    assert refused.returncode == 1
    assert "no model archive" in refused.stderr
    assert (tmp_path / "chat" / "generation_handler.py").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "no such model"], "neither a hub id"),
        (["--model", "."], "no config.json"),
        (["--name", "a b"], "not a model name"),
        (["--format", "tgz"], "--format"),
        (["--config", "none.yaml"], "no such configuration"),
        (["--colour"], "unrecognized arguments: --colour"),
        (["--model"], "needs a value"),
        (["--model", "", "--version", "2"], "needs a value"),
        (["--model", "--version", "2"], "needs a value"),
        (["--model="], "needs a value"),
        (["--model=no such model"], "neither a hub id"),
        ([], "model is not packed"),
    ],
)
def test_a_wrong_argument_is_refused(
    repository: Path, tmp_path: Path, arguments: list[str], told: str
) -> None:
    """archive.sh says what is wrong, and leaves nothing behind."""
    output = tmp_path / "out"
    done = _run(str(repository / "archive.sh"), "--output", str(output), *arguments, cwd=tmp_path)
    assert done.returncode != 0
    assert told in done.stderr
    assert not output.exists() or not list(output.iterdir())


def test_a_configuration_that_would_hang_is_not_packed(repository: Path, tmp_path: Path) -> None:
    """archive.sh runs the configuration check first."""
    config = tmp_path / "model-config.yaml"
    config.write_text("continuousBatching: true\nminWorkers: 2\nmaxWorkers: 2\n")
    done = _run(
        str(repository / "archive.sh"),
        "--config",
        str(config),
        "--output",
        str(tmp_path),
        cwd=tmp_path,
    )
    assert done.returncode != 0
    assert "engines: N" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model-config.yaml"]


def _readme_blocks(repository: Path) -> list[tuple[str, str]]:
    text = (repository / "README.md").read_text()
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def test_the_blocks_of_the_readme_parse(repository: Path, tmp_path: Path) -> None:
    """Shell, Python and YAML in the README are at least well-formed."""
    blocks = _readme_blocks(repository)
    assert {"sh", "python"} <= {language for language, _ in blocks}
    for language, text in blocks:
        if language == "python":
            ast.parse(text)
        elif language == "yaml":
            yaml.safe_load(text)
        elif language == "sh":
            done = _run("bash", "-n", "-c", text, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
