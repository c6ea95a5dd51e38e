"""Both fronts beside the engine alone: throughput of streams, the first token's way, and processor time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from functools import partial

import psutil

from benchmarks.crowd import Crowd
from benchmarks.names import ASGI, ENGINE, FRONT_CPU, FRONT_DECODE, FRONT_HOP, HTTP
from benchmarks.plan import PROMPT_TOKENS
from benchmarks.rates import steady_rate
from benchmarks.rig import Rig
from benchmarks.samples import Sample, Trial, interleave
from ts_stateful.process.names import name_of

__all__ = ["FRONTS", "TITLE", "run"]

TITLE = "both fronts beside the engine alone"

FRONTS = (HTTP, ASGI)
_PER = 1000  # pieces
_NOT_FRONT = ("ts-engine", "ts-fork-server", "ts-decoder")


def run(rig: Rig) -> None:
    """Sample tokens a second, milliseconds of the way to the engine and back, and seconds for 1,000 pieces."""
    plan = rig.plan
    widths = plan.front_widths
    crowds = {system: Crowd(rig, system, max(widths)) for system in FRONTS}
    trials = []
    for width in widths:
        trials += [
            Trial(f"{system} {width}", partial(_streams, rig, system, crowds[system], width))
            for system in FRONTS
        ]
        trials.append(Trial(f"{ENGINE} {width}", partial(_engine, rig, width)))
    rig.progress.expect(plan.front_rounds * len(trials))
    interleave(
        trials,
        rig.samples,
        rig.progress,
        rounds=plan.front_rounds,
        at_least=plan.at_least,
        until=time.monotonic() + plan.front_s,
    )


def _streams(rig: Rig, system: str, crowd: Crowd, width: int) -> Sequence[Sample]:
    plan = rig.plan
    conversations = crowd.begin(width, plan.decode_history - PROMPT_TOKENS)
    before = _processor_s(rig, system)
    turns = crowd.ask(conversations, plan.decode_tokens)
    taken_s = _processor_s(rig, system) - before
    for conversation in conversations:
        conversation.close()
    pieces = sum(len(turn.arrivals) for turn in turns)
    hops = [
        Sample(FRONT_HOP, system, width, turn.first_ms - turn.engine_ms, "ms")
        for turn in turns
        if turn.engine_ms is not None
    ]
    return (
        Sample(FRONT_DECODE, system, width, steady_rate(turns), "tokens/s"),
        Sample(FRONT_CPU, system, width, _PER * taken_s / pieces, "s"),
        *hops,
    )


def _engine(rig: Rig, width: int) -> Sequence[Sample]:
    plan = rig.plan
    rate = rig.engine_alone.measure("decode", width, plan.decode_history, plan.decode_tokens)
    return (Sample(FRONT_DECODE, ENGINE, width, rate, "tokens/s"),)


def _processor_s(rig: Rig, system: str) -> float:
    """Return the processor time of a server's processes but its engines: Java and worker, or the front."""
    (worker,) = rig.server_of(system).describe()["workers"]
    front = psutil.Process(int(worker["pid"]))
    processes = [front]
    if system == HTTP:
        processes += front.parents()[:1]
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if not name_of(process.pid).startswith(_NOT_FRONT):
                times = process.cpu_times()
                total += times.user + times.system
    return total
