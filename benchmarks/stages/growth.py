"""The cost of thousands of open sessions on one engine, without a server."""

from __future__ import annotations

from benchmarks.names import ENGINE, GROWTH_FIRST, GROWTH_MEMORY, GROWTH_OPEN, GROWTH_STEP
from benchmarks.rig import Rig
from benchmarks.samples import Sample

__all__ = ["TITLE", "run"]

TITLE = "thousands of open sessions"

_LAST = 200  # openings before a number of open sessions is reached, which are sampled


def run(rig: Rig) -> None:
    """Sample time to first token, a step, and an opening, in milliseconds, and memory beyond states, by open sessions.

    Numbers grow, and the smallest is sampled again at the end, so that no drift of the machine counts.
    """
    plan = rig.plan
    sizes = (*plan.growth_open, plan.growth_open[0])
    rig.progress.expect(len(sizes) * plan.growth_rounds)
    engine = rig.crowded_engine
    for size in sizes:
        taken = engine.measure("grow", size)
        engine.measure("shrink", size)
        rig.samples.add(Sample(GROWTH_OPEN, ENGINE, size, ms, "ms") for ms in taken[-_LAST:])
        if taken:  # else sessions were closed, whose memory the process may keep
            beyond = engine.measure("memory")
            rig.samples.add([Sample(GROWTH_MEMORY, ENGINE, size, beyond, "bytes")])
        for _ in range(plan.growth_rounds):
            first_ms, step_ms = engine.measure("ask", plan.growth_asks)
            rig.samples.add([Sample(GROWTH_FIRST, ENGINE, size, first_ms, "ms")])
            rig.samples.add([Sample(GROWTH_STEP, ENGINE, size, step_ms, "ms")])
            rig.progress.step(f"{size} open")
