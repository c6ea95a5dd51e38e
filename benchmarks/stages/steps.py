"""Steps of a model with recurrent state: through both fronts, by the engine alone, and by bare forward passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.clients.steps import Batches, Streams
from benchmarks.fleet import STEPS_ARCHIVE, Fleet
from benchmarks.names import (
    ASGI_BATCHES,
    ASGI_STREAMS,
    BARE,
    ENGINE,
    OPEN_STEP,
    PUBLISHED,
    STEP_MEDIAN,
    STEP_P99,
    STEPS,
    STREAMS,
)
from benchmarks.pace import Pace
from benchmarks.rig import Rig
from benchmarks.samples import Sample, Trial, interleave
from benchmarks.servers import pack_published, pack_steps

__all__ = ["TITLE", "run"]

TITLE = "steps of a recurrent model against sequences"

_SYSTEMS = (STREAMS, ASGI_STREAMS, PUBLISHED)
_BARE_TURNS = 3  # in a round: on a shared machine, quarter-second samples differ by a third


def run(rig: Rig) -> None:
    """Sample `steps` a second and a step's latencies against simultaneous sequences.

    Also sample the engine's cost of a step, in microseconds, against open sequences of which few step. The three servers run
    during this stage alone.
    """
    plan = rig.plan
    size = max(plan.step_widths)
    with ExitStack() as stack:
        pack = partial(_pack, rig.recurrent, rig.folder, size)
        fleet = stack.enter_context(Fleet(rig.folder, pack, rig.progress))
        fleet.start(_SYSTEMS)
        clients: dict[str, Streams | Batches] = {}
        for system in _SYSTEMS:
            server = fleet.of(system)
            target = server.grpc_url.removeprefix("grpc://")
            streams = stack.enter_context(Streams(target, server.name, size))
            streams.run(size, plan.step_warm_s)  # Java compiles frequent code
            clients[system] = streams
            if system == ASGI_STREAMS:
                batches = Batches(target, server.name, streams.session_ids)
                clients[ASGI_BATCHES] = stack.enter_context(batches)
        bare = rig.bare_steps.measure
        trials = []
        for width in plan.step_widths:
            trials += _BARE_TURNS * [
                _trial(ENGINE, width, partial(bare, "engine", width, width, plan.step_bare_s)),
                _trial(BARE, width, partial(bare, "floor", width, plan.step_bare_s)),
            ]
            for system, client in clients.items():
                trials.append(_trial(system, width, partial(client.run, width, plan.step_s)))
        trials += [
            Trial(f"{num_open} open", partial(_cost, rig, num_open)) for num_open in plan.step_open
        ]
        rig.progress.expect(plan.step_rounds * len(trials))
        interleave(
            trials,
            rig.samples,
            rig.progress,
            rounds=plan.step_rounds,
            at_least=plan.at_least,
            until=time.monotonic() + plan.steps_s,
        )


def _pack(model: Path, folder: Path, num_sequences: int, archive: str) -> None:
    pack = pack_steps if archive == STEPS_ARCHIVE else pack_published
    pack(archive, model, folder, num_sequences=num_sequences)


def _trial(system: str, width: int, measure: Callable[[], Pace]) -> Trial:
    def take() -> list[Sample]:
        pace = measure()
        return [
            Sample(STEPS, system, width, pace.steps_per_s, "steps/s"),
            Sample(STEP_MEDIAN, system, width, pace.median_ms, "ms"),
            Sample(STEP_P99, system, width, pace.p99_ms, "ms"),
        ]

    return Trial(f"{system} {width}", take)


def _cost(rig: Rig, num_open: int) -> list[Sample]:
    plan = rig.plan
    pace = rig.bare_steps.measure("engine", num_open, plan.step_active, plan.step_bare_s)
    return [Sample(OPEN_STEP, ENGINE, num_open, 1e6 / pace.steps_per_s, "us")]
