"""Both fronts beside the engine alone: throughput of streams, the first token's way, and processor time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from functools import partial

import psutil

from benchmarks.clients.stateful import HttpClient
from benchmarks.crowd import Crowd
from benchmarks.names import ASGI, ENGINE, FRONT_CPU, FRONT_DECODE, FRONT_HOP, HTTP, UNGUESSED
from benchmarks.own_process import OwnProcess
from benchmarks.plan import PROMPT_TOKENS, Plan
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
    """Sample tokens a second, milliseconds of the way to the engine and back, and seconds for 1,000 pieces.

    The sessions stay; after each sample their turns are forgotten but for the first.
    """
    plan = rig.plan
    alone = rig.engine_alone  # it loads while the fronts start
    rig.start(FRONTS)
    widths = plan.front_widths
    streams = {system: _Streams(rig, system, max(widths)) for system in FRONTS}
    trials = []
    for width in widths:
        trials += [
            Trial(f"{system} {width}", partial(streams[system].sample, width)) for system in FRONTS
        ]
        trials.append(Trial(f"{ENGINE} {width}", partial(_engine, alone, plan, width)))
    trials.append(Trial(f"{UNGUESSED} 1", partial(_engine, alone, plan, 1, UNGUESSED)))
    rig.progress.expect(plan.front_rounds * len(trials))
    interleave(
        trials,
        rig.samples,
        rig.progress,
        rounds=plan.front_rounds,
        at_least=plan.at_least,
        until=time.monotonic() + plan.front_s,
    )
    for one in streams.values():
        one.close()


class _Streams:
    """The conversations with one front, up to `most` at a time."""

    def __init__(self, rig: Rig, system: str, most: int) -> None:
        self._rig, self._system = rig, system
        self._crowd = Crowd(rig, system, most)
        self._conversations = self._crowd.begin(most, rig.plan.decode_history - PROMPT_TOKENS)
        self._client = HttpClient(rig.server_of(system))

    def sample(self, width: int) -> Sequence[Sample]:
        """Sample `width` streams."""
        rig, system = self._rig, self._system
        conversations = self._conversations[:width]
        before = _processor_s(rig, system)
        turns = self._crowd.ask(conversations, rig.plan.front_tokens)
        taken_s = _processor_s(rig, system) - before
        for conversation in conversations:
            self._client.rewind(conversation.id)
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

    def close(self) -> None:
        """End the conversations."""
        for conversation in self._conversations:
            conversation.close()
        self._client.disconnect()


def _engine(alone: OwnProcess, plan: Plan, width: int, system: str = ENGINE) -> Sequence[Sample]:
    guesses, lengths = system == ENGINE, (plan.decode_history, plan.front_tokens)
    rate = alone.measure("decode", width, *lengths, guesses)
    return (Sample(FRONT_DECODE, system, width, rate, "tokens/s"),)


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
