"""The Pythons on which `make wheels` uses the wheel."""

from __future__ import annotations

import configparser
import os
import re
import sys
from pathlib import Path

import yaml

from tools.wheels import find, minors

_OTHER = 99  # a Python 3.99 is not on this machine


def _interpreter(path: Path, status: int) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_an_interpreter_is_found_on_the_path_and_then_among_those_of_pyenv(tmp_path: Path) -> None:
    """One that does not run is passed over, as a shim of a version that is not chosen."""
    name = f"python3.{_OTHER}"
    folders = [tmp_path / "shims", tmp_path / "bin"]
    path = os.pathsep.join(map(str, folders))
    assert find(_OTHER, path, tmp_path) is None
    _interpreter(folders[0] / name, 127)
    assert find(_OTHER, path, tmp_path) is None
    of_pyenv = _interpreter(tmp_path / f"versions/3.{_OTHER}.1/bin/{name}", 0)
    assert find(_OTHER, path, tmp_path) == of_pyenv
    chosen = _interpreter(folders[1] / name, 0)
    assert find(_OTHER, path, tmp_path) == chosen
    assert find(sys.version_info.minor, path, tmp_path) == Path(sys.executable)


def test_the_versions_agree_with_those_of_the_metadata_and_of_the_workflow(
    repository: Path,
) -> None:
    """`python_requires` allows the versions of the classifiers alone, and the tests run on each of them."""
    parser = configparser.ConfigParser()
    parser.read(repository / "setup.cfg")
    first, last = minors()[0], minors()[-1]
    assert minors() == list(range(first, last + 1))
    assert parser["options"]["python_requires"] == f">=3.{first},<3.{last + 1}"
    workflow = yaml.safe_load((repository / ".github/workflows/ci.yml").read_text())
    versions = [f"3.{minor}" for minor in minors()]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == versions
    setup = workflow["jobs"]["wheel"]["steps"][1]["with"]["python-version"]
    assert sorted(setup.split()) == versions


def test_a_named_tuple_has_no_other_base(repository: Path) -> None:
    """Python 3.10 refuses `class A(NamedTuple, Generic[T])` at import, and later ones do not."""
    sources = [path.read_text() for path in (repository / "handlers").rglob("*.py")]
    assert [found for text in sources for found in re.findall(r"\(NamedTuple, .+\):", text)] == []
