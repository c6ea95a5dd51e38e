"""What a soak has done and found, as a page of Markdown and as JSON.

Owns the formats.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.soak.leaks import MORE, Held
from tests.soak.plan import PHASES
from tests.soak.rig import Outcome

__all__ = ["verdict", "write"]

_COUNTS = (
    "acts",
    "kills",
    "errors asked for",
    "turns",
    "tokens",
    "turns found their states",
    "turns left alone",
    "repeated requests",
)


def verdict(outcome: Outcome) -> str:
    """One line: what came of it, and how to have it again."""
    plan, tally = outcome.plan, outcome.tally
    leaks = sum(map(len, outcome.leaks.values()))
    found = "clean" if outcome.is_clean else f"{tally.num_failures} failures, {leaks} leaks"
    amount = f"{plan.acts} acts" if plan.acts else f"{plan.minutes:g} minutes of load"
    return (
        f"{found}: {tally.total('acts'):,} acts in {amount}, {tally.total('kills')} kills, "
        f"{outcome.num_compared:,} answers compared; seed {plan.seed}, profile {plan.profile}"
    )


def write(outcome: Outcome, folder: Path) -> Path:
    """Writes report.md and report.json; returns the former."""
    (folder / "report.json").write_text(json.dumps(_document(outcome), indent=1) + "\n")
    tally = outcome.tally
    parts = ["# Soak\n", verdict(outcome) + ".\n"]
    if tally.num_failures:
        parts += ["## Failures\n", *(_failure(dataclasses.asdict(f)) for f in tally.failures), ""]
    for phase, leaks in outcome.leaks.items():
        parts += [f"- leak behind '{phase}': {leak}" for leak in leaks]
    parts += [
        "## Latencies, ms\n",
        _latencies(outcome),
        "## What the server held when nobody used it\n",
    ]
    parts += [_held(outcome)]
    for what in _COUNTS:
        if counts := tally.counts(what):
            parts += [f"## {what.capitalize()}\n", _table(("", ""), counts)]
    path = folder / "report.md"
    path.write_text("\n".join(parts))
    return path


def _document(outcome: Outcome) -> dict[str, Any]:
    tally = outcome.tally
    return {
        "plan": dataclasses.asdict(outcome.plan),
        "clean": outcome.is_clean,
        "minutes": outcome.minutes,
        "counts": {what: tally.counts(what) for what in _COUNTS},
        "answers_compared": outcome.num_compared,
        "latencies": {
            phase.name: {k: dataclasses.asdict(v) for k, v in tally.latencies(phase.name).items()}
            for phase in PHASES
        },
        "snapshots": {name: dataclasses.asdict(each) for name, each in outcome.snapshots.items()},
        "leaks": outcome.leaks,
        "num_failures": tally.num_failures,
        "failures": [dataclasses.asdict(failure) for failure in tally.failures],
    }


def _failure(failure: Mapping[str, str]) -> str:
    return "- {phase} at {at}, {during}, {talk}: {error}: {what}".format(**failure)


def _latencies(outcome: Outcome) -> str:
    phases = [phase.name for phase in PHASES]
    by_phase = {name: outcome.tally.latencies(name) for name in phases}
    lines = [
        "| | " + " | ".join(f"{name}: p50 | p99 | most" for name in phases) + " |",
        "|---|" + "---|" * 3 * len(phases),
    ]
    for kind in sorted({kind for found in by_phase.values() for kind in found}):
        cells = [by_phase[name].get(kind) for name in phases]
        shown = (
            f"{c.p50_ms:,.0f} | {c.p99_ms:,.0f} | {c.max_ms:,.0f}" if c else " | | " for c in cells
        )
        lines.append(f"| {kind} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def _held(outcome: Outcome) -> str:
    names = list(outcome.snapshots)
    lines = ["| | " + " | ".join(f"behind '{name}'" for name in names) + " | more allowed |"]
    lines.append("|---|" + "---|" * (len(names) + 1))
    for role, more in MORE.items():
        for field in Held.__dataclass_fields__:
            values = [getattr(each.held[role], field) for each in outcome.snapshots.values()]
            cells = " | ".join(f"{value:,}" for value in values)
            lines.append(f"| {role}, {field} | {cells} | {getattr(more, field):,} |")
    stats = {
        name: {**each.stats, "logs of sessions": len(each.sessions), **each.files}
        for name, each in outcome.snapshots.items()
    }
    for name in next(iter(stats.values()), {}):
        cells = " | ".join(f"{each[name]:,.0f}" for each in stats.values())
        lines.append(f"| {name} | {cells} | |")
    return "\n".join(lines) + "\n"


def _table(head: tuple[str, str], counts: Mapping[str, int]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    lines += [f"| {name} | {count:,} |" for name, count in counts.items()]
    return "\n".join(lines) + "\n"
