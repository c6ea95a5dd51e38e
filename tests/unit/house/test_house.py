"""The limits of CONTRIBUTING.md: the tree keeps them, and the measure finds what breaks them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import house

BAD = '''"""What a module is."""

class Twice:
    """Whether it stands in two files."""

    def __init__(self, a: int, b: int, c: int, d: int, e: int, then: Callable[[], None]) -> None:
        """Begin anew."""
'''


def test_the_tree_keeps_its_limits() -> None:
    """`make lint` prints the same table."""
    assert [measure for measure in house.measures() if measure.value > measure.limit] == []


def test_the_measure_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two files with the same faults: each of them counts."""
    (tmp_path / "handlers" / "ts_stateful").mkdir(parents=True)
    (tmp_path / "README.md").write_text("word " * 1301)
    for name in ("one", "two", "three", "four"):
        (tmp_path / "handlers" / "ts_stateful" / f"{name}.py").write_text(BAD)
    ast.parse(BAD)
    monkeypatch.setattr(house, "ROOT", tmp_path)
    monkeypatch.setattr(house, "SOURCE", tmp_path / "handlers")
    monkeypatch.setattr(house, "PACKAGE", tmp_path / "handlers" / "ts_stateful")
    found = {measure.name: measure.value for measure in house.measures()}
    assert found["loose modules at the package's top"] == 4
    assert found["class names in more than one file"] == 1
    assert found["constructors of 6 parameters or more"] == 4
    assert found["constructors that take a function"] == 100
    assert found["docstrings that open with What, Whether, ..."] == 8
    assert found["'behind', 'told', 'anew' in the source"] == 4
    assert found["words of the README"] == 1301
