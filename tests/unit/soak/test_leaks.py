"""What counts as left behind by a soak, and how its outcome is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak import report
from tests.soak.cli import main
from tests.soak.leaks import MORE, Held, Snapshot, leaks
from tests.soak.outages import Outages
from tests.soak.plan import PHASES, QUICK
from tests.soak.rig import Outcome
from tests.soak.tally import Tally, Wrong

FIGURES = dict.fromkeys(
    ("SessionsOpen", "TurnsInProgress", "RequestsInFlight", "UploadBytes", "HostBytes"), 0.0
)
FILES = dict.fromkeys(
    (
        "store, embeddings",
        "store, ended sessions",
        "store, unfinished writes",
        "runtime and temporary folder",
    ),
    0,
)
QUIET = Snapshot(
    stats={**FIGURES, "DeviceBytes": 100.0, "SharedBytes": 100.0},
    held={role: Held(1, 10, 20, 10**8) for role in MORE},
    zombies=(),
    sessions=(),
    files=FILES,
)


def test_a_quiet_server_leaks_nothing() -> None:
    """Nor one that has started a thread more, within what is allowed."""
    assert leaks(QUIET, QUIET) == []
    held = {**QUIET.held, "worker": replace(QUIET.held["worker"], threads=11)}
    assert leaks(QUIET, replace(QUIET, held=held)) == []


@pytest.mark.parametrize(
    ("after", "what"),
    [
        (
            replace(QUIET, stats={**QUIET.stats, "RequestsInFlight": 1.0}),
            "RequestsInFlight is 1",
        ),
        (
            replace(QUIET, stats={**QUIET.stats, "DeviceBytes": 101.0}),
            "the device holds 101 bytes, of which 100",
        ),
        (replace(QUIET, zombies=("engine",)), "zombie"),
        (replace(QUIET, sessions=("abc",)), "a session's log: abc"),
        (replace(QUIET, files={**FILES, "store, unfinished writes": 1}), "unfinished writes"),
        (
            replace(QUIET, held={**QUIET.held, "worker": Held(1, 10, 99, 10**8)}),
            "worker, descriptors: 20 became 99",
        ),
        (replace(QUIET, held={**QUIET.held, "other": Held(2, 10, 20, 10**8)}), "other, processes"),
        (replace(QUIET, held={**QUIET.held, "engine": Held(1, 10, 20, 10**9)}), "engine, bytes"),
    ],
)
def test_whatever_is_more_than_it_may_be_is_told(after: Snapshot, what: str) -> None:
    """By its name, with the numbers."""
    (leak,) = leaks(QUIET, after)
    assert what in leak


def test_what_a_killed_engine_leaves_is_swept_later() -> None:
    """Logs of sessions that nobody has closed, and what it was writing; nothing else."""
    after = replace(QUIET, sessions=("left",), files={**FILES, "store, unfinished writes": 2})
    assert leaks(QUIET, after, left=["left"], num_kills=1) == []
    assert len(leaks(QUIET, after, left=["left"])) == 2
    assert len(leaks(QUIET, after, num_kills=1)) == 1


def test_connections_may_break_from_a_kill_to_the_return() -> None:
    """A request that began before the end of an outage was touched by it."""
    now = 0.0
    outages = Outages(lambda: now)
    assert not outages.touched(0.0)
    with outages.outage():
        assert outages.touched(0.0)
        now = 5.0
    assert outages.touched(4.0)
    assert not outages.touched(6.0)


def test_a_report_says_what_was_done_and_how_to_have_it_again(tmp_path: Path) -> None:
    """As a page and as JSON; with its failures and leaks."""
    tally = Tally()
    tally.phase = PHASES[0].name
    tally.count("acts", "ask", 3)
    with tally.timed("open"):
        pass
    outcome = Outcome(QUICK, tally, 0.5, {PHASES[0].name: QUIET}, {PHASES[0].name: []}, 7)
    assert report.verdict(outcome).startswith("clean: 3 acts in 300 acts, 0 kills, 7 answers")
    assert "seed 1" in report.verdict(outcome)
    tally.fail("ask", "calm-1", Wrong("no answer"))
    outcome.leaks[PHASES[0].name] = ["zombie: engine"]
    assert not outcome.is_clean
    page = report.write(outcome, tmp_path).read_text()
    for part in ("1 failures, 1 leaks", "no answer", "zombie: engine", "| ask | 3 |", "| open |"):
        assert part in page
    document = json.loads((tmp_path / "report.json").read_text())
    assert (document["clean"], document["num_failures"]) == (False, 1)


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """What is done, what is checked, where the report is, and examples."""
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    for part in ("build/soak/report.md", "exit", "--seed", "examples:", "make soak MINUTES="):
        assert part in told
