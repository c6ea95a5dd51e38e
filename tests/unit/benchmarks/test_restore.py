"""The benchmark of sessions that come back runs to its end."""

from __future__ import annotations

import pytest

from benchmarks.restore import main


@pytest.mark.slow
def test_every_tier_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """A session's states come from the tier that the table names, or there is no table."""
    assert main(["--rounds", "1", "--histories", "64"]) == 0
    head, _, row = capsys.readouterr().out.splitlines()
    names = ["resident", "in host memory", "in the store", "computed again"]
    assert [cell.strip() for cell in head.split("|")[2:-1]] == names
    assert all(float(cell) > 0 for cell in row.split("|")[2:-1])
