"""The table of models names those that are tested."""

from __future__ import annotations

from tests import models_table


def test_every_tested_model_is_in_the_table() -> None:
    """In order, and exact; `python -m tests.models_table` makes it."""
    table = models_table.PAGE.read_text(encoding="utf-8").partition(models_table.BEGIN)[2]
    rows = [line.split(" | ") for line in table.partition(models_table.END)[0].splitlines()[3:]]
    expected = [models_table.title(build) for build in models_table.builders()]
    assert [row[0].removeprefix("| ") for row in rows] == [name for name, _ in expected]
    assert {row[5] for row in rows} == {"yes"}
