"""The search for inputs that break something, which begins with those of the corpus."""

from __future__ import annotations

import hashlib
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from tests.e2e.server import ROOT
from tests.fuzz.damage import damaged
from tests.fuzz.parsers import Parser, check
from tests.fuzz.work import TooMuchWork

__all__ = ["CORPUS", "FINDINGS", "Finding", "inputs", "run", "search"]

CORPUS = Path(__file__).parent / "corpus"
FINDINGS = ROOT / "build" / "fuzz"


class Finding(NamedTuple):
    """An input that has broken something, in a file below a folder of its target's name."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.reason}\nrun it again: python -m tests.fuzz --replay {self.path}"

    @classmethod
    def keep(cls, target: str, data: bytes, reason: str, folder: Path = FINDINGS) -> Finding:
        """Write the input below `folder`, which then has the layout of the corpus."""
        path = folder / target / hashlib.sha256(data).hexdigest()[:12]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return cls(path, reason)


def inputs(target: str) -> dict[str, bytes]:
    """Return the corpus of a target: its inputs by their names."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / target).iterdir())}


def search(
    name: str,
    parser: Parser,
    *,
    seed: int | None = None,
    examples: int,
    folder: Path = FINDINGS,
) -> Finding | None:
    """Parse `examples` inputs made from the corpus of that name; return the smallest that was found to break the parser."""
    last, costly = b"", list[TooMuchWork]()

    def attempt(data: bytes) -> None:
        nonlocal last
        if costly:
            return
        last = data
        try:
            check(parser, data)
        except TooMuchWork as error:  # not to be made smaller: each attempt would take long
            costly.append(error)

    try:
        run(attempt, damaged(list(inputs(name).values())), seed=seed, examples=examples)
        if not costly:
            return None
        error: Exception = costly[0]
    except Exception as raised:  # of any kind: it is what is searched for
        error = raised
    place = "".join(traceback.format_tb(error.__traceback__, -3))
    return Finding.keep(name, last, f"{place}{type(error).__name__}: {error}", folder)


def run(
    attempt: Callable[[Any], None],
    strategy: st.SearchStrategy[Any],
    *,
    seed: int | None,
    examples: int,
    shrinks: bool = True,
) -> None:
    """Call `attempt` with generated examples; without a seed, they are the same each time.

    If it raises an error, it is called again with ever smaller examples, at last with the smallest one, whose error is raised.
    """
    made = settings(
        max_examples=examples,
        derandomize=seed is None,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if shrinks else [Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )(given(strategy)(attempt))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)  # of large examples
        (made if seed is None else hypothesis.seed(seed)(made))()
