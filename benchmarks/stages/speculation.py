"""Drafts of n-grams: one stream of dialogues whose replies repeat their history, and of others, over the same without."""

from __future__ import annotations

import contextlib
import time
from functools import partial

from benchmarks.clients.llama_dialogues import talk
from benchmarks.names import (
    DRAFTED,
    LLAMA,
    LLAMA_DRAFTS,
    SPEC_NEW,
    SPEC_REPEATING,
    SPEC_RIGHT,
    UNDRAFTED,
)
from benchmarks.rig import Rig
from benchmarks.samples import Sample, Trial, interleave
from benchmarks.text_model.held_out import Said, held_out

__all__ = ["TITLE", "run"]

TITLE = "drafts of replies that repeat their history"

_MEASURES = {SPEC_REPEATING: True, SPEC_NEW: False}
_DRAFTS = ("--spec-type", "ngram-simple")


def run(rig: Rig) -> None:
    """Sample tokens a second of one stream with drafts and without, and the share of drafted tokens that were right.

    With llama.cpp's server at hand, the same by it.

    Raises:
        RuntimeError: replies with drafts are not those without.
    """
    plan = rig.plan
    for dialogues in map(held_out, (True, False)):
        for drafts in (True, False):
            rig.dialogues_alone.measure("talk", dialogues[:2], drafts)  # the first passes are slow
    first: dict[str, list[str]] = {}
    trials = [
        Trial(f"{measure}, {system}", partial(_sample, rig, measure, system, first))
        for measure in _MEASURES
        for system in (UNDRAFTED, DRAFTED)
    ]
    with contextlib.ExitStack() as stack:
        trials += _llama_trials(rig, stack)
        rig.progress.expect(plan.spec_rounds * len(trials))
        interleave(
            trials,
            rig.samples,
            rig.progress,
            rounds=plan.spec_rounds,
            at_least=plan.at_least,
            until=time.monotonic() + plan.spec_s,
        )


def _llama_trials(rig: Rig, stack: contextlib.ExitStack) -> list[Trial]:
    trials = []
    for system, options in ((LLAMA, ()), (LLAMA_DRAFTS, _DRAFTS)):
        server = rig.start_trained_llama(*options)
        if server is not None:
            port = stack.enter_context(server).port
            trials += [
                Trial(f"{measure}, {system}", partial(_llama, measure, system, port))
                for measure in _MEASURES
            ]
    return trials


def _sample(rig: Rig, measure: str, system: str, first: dict[str, list[str]]) -> list[Sample]:
    dialogues = held_out(_MEASURES[measure])
    said = rig.dialogues_alone.measure("talk", dialogues, system == DRAFTED)
    if said.replies != first.setdefault(measure, said.replies):
        raise RuntimeError(f"{measure}: replies with drafts are not those without")
    return _samples(measure, system, said)


def _llama(measure: str, system: str, port: int) -> list[Sample]:
    return _samples(measure, system, talk(port, held_out(_MEASURES[measure])))


def _samples(measure: str, system: str, said: Said) -> list[Sample]:
    made = [Sample(measure, system, 1, said.num_tokens / said.seconds, "tokens/s")]
    if said.num_drafted:
        share = 100 * said.num_accepted / said.num_drafted
        made.append(Sample(SPEC_RIGHT, f"{system}: {measure}", 1, share, "%"))
    return made
