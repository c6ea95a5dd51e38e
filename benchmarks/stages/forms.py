"""The cost of choosing in a decode step: by a JSON schema for every row, or by sampling, beside the same rows without."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.names import DRAWN, FORMED, FORMS, PLAIN
from benchmarks.rig import Rig
from benchmarks.samples import Sample, Trial, interleave

__all__ = ["TITLE", "run"]

TITLE = "a decode step with JSON schemas, and with sampling"


def run(rig: Rig) -> None:
    """Sample the milliseconds of a token of each of 16 rows, with a schema, sampled and without, by the engine alone."""
    plan = rig.plan
    trials = [Trial(system, partial(_step, rig, system)) for system in (PLAIN, FORMED, DRAWN)]
    rig.progress.expect(plan.form_rounds * len(trials))
    interleave(
        trials,
        rig.samples,
        rig.progress,
        rounds=plan.form_rounds,
        at_least=plan.form_rounds,
        until=time.monotonic(),
    )


def _step(rig: Rig, system: str) -> list[Sample]:
    plan, kinds = rig.plan, (system == FORMED, system == DRAWN)
    taken_ms = rig.form_steps.measure("step", plan.form_width, plan.form_steps, *kinds)
    return [Sample(FORMS, system, plan.form_width, taken_ms, "ms")]
