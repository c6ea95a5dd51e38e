"""Parsers refuse what they do not accept by their own errors, and the work that they do is bounded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz.parsers import PARSERS, Parser, check
from tests.fuzz.programs import PROGRAMS
from tests.fuzz.search import CORPUS, inputs, search
from tests.fuzz.work import TooMuchWork

_EXAMPLES = 60


@pytest.mark.parametrize("name", PARSERS)
def test_inputs_of_the_corpus_are_refused_or_accepted(name: str) -> None:
    """Each parser accepts one of them, so that others resemble it; but for tokens, which nobody has signed."""
    outcomes = [check(PARSERS[name], data) for data in inputs(name).values()]
    assert ("" in outcomes) == (name != "token")


@pytest.mark.parametrize("name", PARSERS)
def test_inputs_like_those_of_the_corpus_are_refused_or_accepted(name: str, tmp_path: Path) -> None:
    """The same in each run; `make fuzz` tries others."""
    finding = search(name, PARSERS[name], examples=_EXAMPLES, folder=tmp_path)
    assert finding is None, f"{finding}\n{finding.path.read_bytes()[:1000]!r}"


def test_the_corpus_has_no_other_folders() -> None:
    """A folder of another name would not be tried."""
    assert {path.name for path in CORPUS.iterdir()} == {*PARSERS, PROGRAMS}


def test_a_parser_without_bounds_is_found() -> None:
    """One that makes an object of each value."""
    naive = Parser(json.loads)
    with pytest.raises(TooMuchWork, match="bytes of memory"):
        check(naive, b"[" + b"[[]]," * 1_000_000 + b"0]")


def test_a_wrong_error_is_found(tmp_path: Path) -> None:
    """The finding has the line that runs it again."""
    wrong = Parser(lambda data: data.index(b"scheme"))
    finding = search("request", wrong, examples=20, folder=tmp_path)
    assert finding is not None
    assert finding.path.parent == tmp_path / "request"
    assert str(finding).endswith(f"python -m tests.fuzz --replay {finding.path}")
    with pytest.raises(ValueError, match="not found"):
        check(wrong, finding.path.read_bytes())
