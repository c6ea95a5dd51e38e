"""The environment variables of the package."""

from __future__ import annotations

import re
from pathlib import Path

from ts_stateful.cli.variables import VARIABLES, misspelled


def test_all_variables_of_the_source_are_known(repository: Path) -> None:
    """And no others."""
    modules = (repository / "handlers" / "ts_stateful").rglob("*.py")
    found = re.findall(r"TS_STATEFUL_[A-Z_]+[A-Z]", "".join(map(Path.read_text, modules)))
    assert set(found) == VARIABLES


def test_a_similar_name_is_named() -> None:
    """Neither one of the user's own, nor one that is right."""
    names = [
        "TS_STATEFUL_TOKNE",
        "TS_STATEFUL_URL",
        "TS_STATEFUL_STORE_PASSWORD",
        "TS_STATEFUL_STORE_KEY",
        "HOME",
    ]
    (sentence,) = misspelled(names)
    assert (
        sentence == "TS_STATEFUL_TOKNE: there is no such variable; did you mean TS_STATEFUL_TOKEN?"
    )
