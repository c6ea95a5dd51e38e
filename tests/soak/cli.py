"""The command line of a soak: for how long, from which seed, and where the report goes."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.progress import Progress
from tests.e2e.server import ROOT
from tests.soak import report
from tests.soak.plan import PHASES, Plan
from tests.soak.rig import soak

__all__ = ["main"]

_EPILOG = """\
A TorchServe with the small trained model of examples/shapes gets, from several users at once: sessions with pictures and
without, under ids of their choice, that end by themselves or are closed; turns, streamed, whole and pulled, greedy and sampled,
repeated, cancelled and abandoned; forks, rewinds, uploads; and requests that make no sense. Its budgets are so small that idle
sessions are evicted all the time. In the last phase its engine and its worker are killed again and again.

While it runs, every request must be answered once and in time, by no other error than the one that was asked for; a stream must
say what the record says; and what is asked twice in the same state must be answered alike. Behind each phase, when all sessions
are over, some conversations are held again undisturbed, and then nothing may be left: no session, no byte, no file, no thread,
no process.

The report is build/soak/report.md, with the same as JSON beside it; the log of the server is build/test-logs/soak.log. The exit
status is 1 if anything was wrong. The same seed makes the same scripts; what of them happens at the same time differs.

examples:
  python -m tests.soak
  python -m tests.soak --minutes 1 --seed 7
  make soak MINUTES=60 SEED=7 PROFILE=async
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a soak and writes its report; returns the exit status."""
    options = _parser().parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    plan = Plan(
        seed,
        minutes=options.minutes,
        acts=options.acts,
        profile=options.profile,
        users=options.users,
        kills=options.kills,
    )
    folder: Path = options.output.resolve()
    server_folder = folder / "soak-server"
    shutil.rmtree(server_folder, ignore_errors=True)  # that of an earlier one
    server_folder.mkdir(parents=True)
    progress = Progress(1 + len(PHASES))
    progress.say(f"seed {seed}")
    outcome = soak(plan, server_folder, progress)
    path = report.write(outcome, folder)
    for phase, leaks in outcome.leaks.items():
        for leak in leaks:
            progress.say(f"leak behind '{phase}': {leak}")
    sys.stdout.write(f"{report.verdict(outcome)}\n{path}  ({outcome.minutes} minutes)\n")
    return 0 if outcome.is_clean else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="Put a TorchServe with sessions under a random load, kill parts of it, and look at what is left behind.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=_positive, default=10.0, help="of load (default: 10)")
    parser.add_argument(
        "--acts",
        type=int,
        default=0,
        metavar="N",
        help="so many acts instead, however long they take",
    )
    parser.add_argument(
        "--seed", type=int, help="of all scripts (default: a random one, which is told)"
    )
    parser.add_argument("--profile", choices=("continuous", "async", "asgi"), default="continuous")
    parser.add_argument(
        "--users", type=int, default=8, metavar="N", help="at the same time (default: 8)"
    )
    parser.add_argument(
        "--kills", type=int, default=0, metavar="N", help="default: one in 20 s of the last phase"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "build" / "soak",
        metavar="FOLDER",
        help="for the report, and in soak-server archive, store and logs of engines (default: build/soak)",
    )
    return parser


def _positive(text: str) -> float:
    number = float(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number
