"""Decode steps of 16 sessions by family of text models, beside the bare forward pass."""

from __future__ import annotations

from benchmarks.names import CACHES, ENGINE, floor_name, of_family
from benchmarks.rig import Rig
from benchmarks.samples import Sample

__all__ = ["TITLE", "run"]

TITLE = "families of text models"

_WIDTH = 16


def run(rig: Rig) -> None:
    """Sample tokens a second of the engine alone and of the floor, in turns, one family after the other."""
    plan = rig.plan
    rig.progress.expect(len(plan.families) * plan.family_rounds)
    steps = rig.family_steps
    for family in plan.families:
        for _ in range(plan.family_rounds):
            rate = steps.measure("engine", family, _WIDTH, plan.family_steps)
            rig.samples.add([Sample(of_family(family), ENGINE, _WIDTH, rate, "tokens/s")])
            for cache in CACHES:
                rate = steps.measure("floor", family, _WIDTH, plan.family_steps, cache)
                rig.samples.add(
                    [Sample(of_family(family), floor_name(cache), _WIDTH, rate, "tokens/s")]
                )
            rig.progress.step(family)
