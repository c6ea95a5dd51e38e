"""The identity of an unpacked archive."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ts_stateful.process.archive import content_digest, identity_of

NAMES = "0" * 32, "f" * 32


def archive(folder: Path, packed: str = "noon", weight: bytes = b"\0") -> Path:
    """Make a folder as TorchServe unpacks an archive."""
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"createdOn": packed}))
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_bytes(weight * 10)
    return folder


def test_archives_are_compared_by_content(tmp_path: Path) -> None:
    """Names, configurations and times of packing do not count; weights and code do."""

    def unpacked(name: str, weight: bytes = b"\0", code: str = "pass") -> Path:
        folder = tmp_path / name
        (folder / "MAR-INF").mkdir(parents=True)
        model = {"modelName": "chat", "modelVersion": "1.0", "configFile": f"{name}.yaml"}
        manifest = {"createdOn": name, "model": model}
        (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
        (folder / f"{name}.yaml").write_text(name)
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_bytes(weight * 5_000_000)
        (folder / "handler.py").write_text(code)
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / name).touch()
        return folder

    one = content_digest(unpacked("one"))
    assert content_digest(unpacked("two")) == one
    assert content_digest(unpacked("three", weight=b"\1")) != one
    assert content_digest(unpacked("four", code="...")) != one


def test_an_archive_that_is_unpacked_again_is_the_same(tmp_path: Path) -> None:
    """Also if the first folder has new files since. Other archives differ, and so does the same one packed again."""
    first, second = (archive(tmp_path / name) for name in NAMES)
    identity = identity_of(first, "model")
    (first / "model" / "lock").touch()
    assert identity_of(first, "model") == identity
    assert identity_of(second, "model:Class") == identity
    shutil.rmtree(second)
    assert identity_of(archive(second, packed="one"), "model") != identity
    shutil.rmtree(second)
    assert identity_of(archive(second, weight=b"\1"), "model") != identity


@pytest.mark.parametrize("model", ["llava-hf/llava-1.5-7b-hf", "/", "../elsewhere"])
def test_a_model_outside_of_its_archive_is_known_by_its_folder(tmp_path: Path, model: str) -> None:
    """Its weights may have changed."""
    (tmp_path / "elsewhere").mkdir()
    folder = archive(tmp_path / NAMES[0])
    assert identity_of(folder, model) == str(folder)


def test_a_folder_that_was_not_unpacked_is_known_by_its_path(tmp_path: Path) -> None:
    """Files of a folder that is served in place may change. A folder without a manifest is known by its path, too."""
    plain = archive(tmp_path / "chat")
    assert identity_of(plain, "model") == str(plain)
    link = tmp_path / NAMES[0]
    link.symlink_to(plain)
    assert identity_of(link, "model") == str(link)
    torn = archive(tmp_path / NAMES[1])
    (torn / "MAR-INF" / "MANIFEST.json").unlink()
    assert identity_of(torn, "model") == str(torn)
