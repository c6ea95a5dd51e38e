"""Everything at once, at random, with kills: nobody gets a wrong answer, and nothing is left behind."""

from __future__ import annotations

import io
from pathlib import Path

from benchmarks.progress import Progress
from tests.soak import report
from tests.soak.plan import PHASES, QUICK
from tests.soak.rig import soak


def test_a_short_soak_is_clean(tmp_path: Path) -> None:
    """What `make soak` does for minutes, by the number of acts: the same scripts every time, however fast the machine is."""
    outcome = soak(QUICK, tmp_path, Progress(1 + len(PHASES), io.StringIO()))
    written = report.write(outcome, tmp_path)
    assert outcome.is_clean, written.read_text()
    assert outcome.tally.total("kills") > 0
    assert outcome.num_compared > 0
