"""The cost of a form in a decode step: a JSON schema for every row, beside the same rows without."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.names import FORMED, FORMS, PLAIN
from benchmarks.rig import Rig
from benchmarks.samples import Sample, Trial, interleave

__all__ = ["TITLE", "run"]

TITLE = "a decode step with JSON schemas"


def run(rig: Rig) -> None:
    """Sample the milliseconds of a token of each of 16 rows, with a schema for each and without, by the engine alone."""
    plan = rig.plan
    trials = [
        Trial(system, partial(_step, rig, system, has_forms=system == FORMED))
        for system in (PLAIN, FORMED)
    ]
    rig.progress.expect(plan.form_rounds * len(trials))
    interleave(
        trials,
        rig.samples,
        rig.progress,
        rounds=plan.form_rounds,
        at_least=plan.form_rounds,
        until=time.monotonic(),
    )


def _step(rig: Rig, system: str, *, has_forms: bool) -> list[Sample]:
    plan = rig.plan
    taken_ms = rig.form_steps.measure("step", plan.form_width, plan.form_steps, has_forms)
    return [Sample(FORMS, system, plan.form_width, taken_ms, "ms")]
