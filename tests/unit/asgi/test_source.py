"""The forms in which a model is given to the front."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from ts_stateful.asgi.source import open_source, open_sources
from ts_stateful.config.edit import completed
from ts_stateful.config.schema import ConfigError

_MANIFEST = {
    "model": {"modelName": "named", "modelVersion": "2.1", "configFile": "model-config.yaml"}
}
_CONFIG = "maxNumSequence: 7\nhandler:\n  model: model\n"


def archive(path: Path, files: dict[str, str]) -> Path:
    """A .mar file with these files."""
    with zipfile.ZipFile(path, "w") as made:
        for name, text in files.items():
            made.writestr(name, text)
    return path


@pytest.fixture
def files() -> dict[str, str]:
    """The files of an archive."""
    return {"MAR-INF/MANIFEST.json": json.dumps(_MANIFEST), "model-config.yaml": _CONFIG}


def test_an_archive_has_its_own_name_and_configuration(
    tmp_path: Path, files: dict[str, str]
) -> None:
    """It is unpacked below the folder, under a name that marks an archive."""
    source = open_source(
        str(archive(tmp_path / "a.mar", files)), tmp_path / "home", name=None, config=None
    )
    assert (source.name, source.version) == ("named", "2.1")
    assert source.document["maxNumSequence"] == 7
    folder = Path(source.folder)
    assert folder.parent == tmp_path / "home"
    assert (len(folder.name), folder.stat().st_mode & 0o777) == (32, 0o700)


def test_an_unpacked_archive_is_served_where_it_is(tmp_path: Path, files: dict[str, str]) -> None:
    """A name and a configuration can replace its own."""
    folder = tmp_path / "unpacked"
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    other = tmp_path / "other.yaml"
    other.write_text("maxNumSequence: 9\n")
    source = open_source(str(folder), tmp_path / "home", name="mine", config=other)
    assert (source.name, source.folder) == ("mine", str(folder))
    assert source.document == completed({"maxNumSequence": 9})


def test_a_models_folder_is_its_own_model(tmp_path: Path) -> None:
    """With a configuration beside it, or the defaults."""
    folder = tmp_path / "llava"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    source = open_source(str(folder), tmp_path / "home", name=None, config=None)
    assert (source.name, source.document["handler"]) == ("chat", {"model": str(folder)})
    assert source.document["maxNumSequence"] == 256
    (folder / "model-config.yaml").write_text(_CONFIG)
    source = open_source(str(folder), tmp_path / "home", name=None, config=None)
    own = {"maxNumSequence": 7, "handler": {"model": str(folder)}}
    assert source.document == completed(own)


def test_an_id_of_the_hub_is_left_to_the_engine(tmp_path: Path) -> None:
    """Which loads it."""
    source = open_source("owner/some-model", tmp_path / "home", name=None, config=None)
    assert source.document["handler"] == {"model": "owner/some-model"}
    assert list(Path(source.folder).iterdir()) == []


def test_a_class_is_served_from_its_file(tmp_path: Path) -> None:
    """With the configuration beside it."""
    (tmp_path / "sum.py").write_text("class Sum: ...")
    (tmp_path / "model-config.yaml").write_text(_CONFIG)
    source = open_source(f"{tmp_path}/sum.py:Sum", tmp_path / "home", name="sum", config=None)
    assert (source.name, source.folder) == ("sum", str(tmp_path))
    assert source.document["handler"] == {"model": "sum.py:Sum"}
    assert source.document["maxNumSequence"] == 7


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("missing.mar", "no such file or folder"),
        ("build/missing.mar", "no such file or folder"),
        ("owner/a/b", "no such file or folder"),
        ("", "'': no such file or folder"),
        ("{folder}/broken.mar", "cannot be unpacked"),
        ("{folder}/model.gguf", "is a file: name a folder with config.json and safetensors"),
        ("{folder}/sum.py", "names no class: write .*/sum.py:Class"),
        ("{folder}/other.zip", "not an archive of torch-model-archiver"),
        ("{folder}/empty", "has neither model-config.yaml nor"),
    ],
)
def test_what_is_no_model_is_refused(given: str, problem: str, tmp_path: Path) -> None:
    """With what would be one."""
    for name in ("broken.mar", "model.gguf", "sum.py"):
        (tmp_path / name).write_text("text")
    (tmp_path / "empty").mkdir()
    archive(tmp_path / "other.zip", {"a": "b"})
    with pytest.raises(ConfigError, match=problem):
        open_source(given.format(folder=tmp_path), tmp_path / "home", name=None, config=None)


@pytest.mark.parametrize("text", ["- a\n", "a: [\n"])
def test_a_configuration_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    """It is named."""
    config = tmp_path / "config.yaml"
    config.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        open_source("owner/model", tmp_path / "home", name=None, config=config)


def test_a_name_cannot_be_a_path(tmp_path: Path) -> None:
    """It becomes a part of URLs."""
    with pytest.raises(ConfigError, match="not a name"):
        open_source("owner/model", tmp_path / "home", name="a/b", config=None)


def test_models_of_one_server_have_different_names(tmp_path: Path) -> None:
    """The first one is `chat` if nothing names it, others are named by their folders or ids."""
    given = ["owner/first", "owner/second"]
    sources = open_sources(given, tmp_path / "home", name=None, config=None)
    assert [source.name for source in sources] == ["chat", "second"]
    with pytest.raises(ConfigError, match="two models are named second"):
        open_sources(given, tmp_path / "home", name="second", config=None)
