"""A comparison with another server: time to first token and throughput of the text part on the same weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from benchmarks.clients.conversation import Client, Conversation
from benchmarks.crowd import Crowd
from benchmarks.names import TEXT_ASGI, TEXT_HTTP
from benchmarks.plan import PROMPT_TOKENS
from benchmarks.rig import Rig
from benchmarks.samples import Sample, Trial, interleave
from benchmarks.stages.decode import stream_trial
from benchmarks.stages.ttft import run_systems

__all__ = ["OURS", "compare_replies", "run_beside"]

OURS = (TEXT_ASGI, TEXT_HTTP)

# Random weights give the same word by chance once in thousands of tokens.
_SAME_WORDS = 8
_SAME_FIRST_WORDS = 0.5  # of replies in bfloat16, whose rounding decides now and then


def run_beside(rig: Rig, other: str, ttft: str, prefill: str, decode: str) -> None:
    """Sample the measures, of both fronts and another system."""
    plan = rig.plan
    systems = (*OURS, other)
    run_systems(rig, ttft, systems, (), plan.batches, plan.beside_s / 2)
    trials = []
    for system in systems:
        client = rig.connect(system)
        trials += [
            Trial(f"{system}, prompt", partial(_prefill, rig, prefill, system, client, length))
            for length in plan.beside_prompts
        ]
        crowd = Crowd(rig, system, max(plan.beside_widths))
        for width in plan.beside_widths:
            turns = plan.beside_turns if width == 1 else 1
            trials += turns * [stream_trial(rig, decode, system, crowd, width)]
    rig.progress.expect(plan.beside_rounds * len(trials))
    interleave(
        trials,
        rig.samples,
        rig.progress,
        rounds=plan.beside_rounds,
        at_least=plan.at_least,
        until=time.monotonic() + plan.beside_s / 2,
    )


def _prefill(rig: Rig, measure: str, system: str, client: Client, num_tokens: int) -> list[Sample]:
    """Sample the time to first token of a prompt without a history."""
    conversation = Conversation(client)
    turn = conversation.ask(rig.inputs.prompt(num_tokens), 2)
    conversation.close()
    return [Sample(measure, system, num_tokens, turn.first_ms, "ms")]


def compare_replies(rig: Rig, other: Client, name: str) -> None:
    """Check that another system computes the same, without which a comparison is worthless.

    Greedy replies must be the same, at least up to a token where rounding decides; in bfloat16 most of their first words.

    Raises:
        RuntimeError: the replies differ.
    """
    inputs, plan = rig.inputs, rig.plan
    systems = (rig.connect(TEXT_HTTP), other)
    if rig.text_dtypes.weights == "bfloat16":
        prompts = [inputs.prompt(PROMPT_TOKENS) for _ in range(plan.same_prompts)]
        firsts = [[_replies(client, [prompt], 1) for prompt in prompts] for client in systems]
        num_same = sum(our == their for our, their in zip(*firsts, strict=True))
        if num_same < _SAME_FIRST_WORDS * len(prompts):
            raise RuntimeError(f"{num_same} of {len(prompts)} first words are {name}'s")
        return
    prompts = [inputs.prompt(plan.decode_history), inputs.prompt(PROMPT_TOKENS)]
    ours, theirs = (_replies(client, prompts, plan.decode_tokens) for client in systems)
    for our, their in zip(ours, theirs, strict=True):
        if our.split()[:_SAME_WORDS] != their.split()[:_SAME_WORDS]:
            raise RuntimeError(f"{name}'s replies are not those of the same model")
        if our != their:
            return  # from here on, the histories differ


def _replies(client: Client, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[str]:
    conversation = Conversation(client)
    replies = [" ".join(conversation.ask(p, num_tokens).text.split()) for p in prompts]
    conversation.close()
    return replies
