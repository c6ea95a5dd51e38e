"""Throughput of streams that run side by side."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from benchmarks.crowd import Crowd
from benchmarks.names import CACHES, DECODE, HTTP, RECOMPUTE, TURNS, floor_name
from benchmarks.plan import PROMPT_TOKENS
from benchmarks.rates import steady_rate, whole_rate
from benchmarks.rig import Rig
from benchmarks.samples import Sample, Trial, interleave

__all__ = ["TITLE", "run", "stream_trial"]

TITLE = "decode throughput against concurrent streams"


def run(rig: Rig) -> None:
    """Sample `decode` (while all streams run) and `turns` (whole turns) in tokens a second."""
    plan = rig.plan
    rig.start((HTTP, RECOMPUTE))
    crowds = {
        HTTP: Crowd(rig, HTTP, max(plan.widths)),
        RECOMPUTE: Crowd(rig, RECOMPUTE, max(plan.recompute_widths)),
    }
    trials = []
    for width in plan.widths:
        trials.append(stream_trial(rig, DECODE, HTTP, crowds[HTTP], width))
        trials += [Trial(f"floor {width}", partial(_bare, rig, width, kind)) for kind in CACHES]
        if width in plan.recompute_widths:
            one_by_one = partial(_recompute, rig, crowds[RECOMPUTE], width)
            trials.append(Trial(f"{RECOMPUTE} {width}", one_by_one))
    rig.progress.expect(plan.decode_rounds * len(trials))
    interleave(
        trials,
        rig.samples,
        rig.progress,
        rounds=plan.decode_rounds,
        at_least=plan.at_least,
        until=time.monotonic() + plan.decode_s,
    )


def stream_trial(rig: Rig, measure: str, system: str, crowd: Crowd, width: int) -> Trial:
    """Return a trial that begins conversations, prompts all at once, and closes them."""

    def take() -> Sequence[Sample]:
        plan = rig.plan
        conversations = crowd.begin(width, plan.decode_history - PROMPT_TOKENS)
        turns = crowd.ask(conversations, plan.decode_tokens)
        for conversation in conversations:
            conversation.close()
        return (
            Sample(measure, system, width, steady_rate(turns), "tokens/s"),
            Sample(TURNS, system, width, whole_rate(turns), "tokens/s"),
        )

    return Trial(f"{system} {width}", take)


def _recompute(rig: Rig, crowd: Crowd, width: int) -> list[Sample]:
    conversations = crowd.begin(width, rig.plan.decode_history - PROMPT_TOKENS)
    turns = crowd.ask(conversations, rig.plan.decode_tokens)
    return [Sample(TURNS, RECOMPUTE, width, whole_rate(turns), "tokens/s")]


def _bare(rig: Rig, width: int, cache: str) -> list[Sample]:
    plan = rig.plan
    steps = plan.decode_tokens // 2
    step_ms = rig.floor.measure("decode", width, plan.decode_history, steps, cache)
    return [Sample(DECODE, floor_name(cache), width, 1000 * width / step_ms, "tokens/s")]
