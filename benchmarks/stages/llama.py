"""A comparison with llama.cpp: time to first token and throughput of the text part on the same weights."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.clients.conversation import Client, Conversation
from benchmarks.clients.llama import LlamaClient
from benchmarks.crowd import Crowd
from benchmarks.names import LLAMA, LLAMA_DECODE, LLAMA_TTFT, TEXT_HTTP
from benchmarks.plan import PROMPT_TOKENS
from benchmarks.rig import Rig
from benchmarks.samples import interleave
from benchmarks.stages.decode import stream_trial
from benchmarks.stages.ttft import run_systems

__all__ = ["TITLE", "run"]

TITLE = "beside llama.cpp"

_SAME_WORDS = 8  # random weights give the same word by chance once in thousands of tokens
_SYSTEMS = (TEXT_HTTP, LLAMA)


def run(rig: Rig) -> None:
    """Sample `llama ttft` and `llama decode`.

    Raises:
        RuntimeError: llama.cpp computes another model.
    """
    plan = rig.plan
    _compare_replies(rig)
    run_systems(rig, LLAMA_TTFT, _SYSTEMS, (), plan.batches, plan.llama_s / 2)
    trials = []
    for system in _SYSTEMS:
        crowd = Crowd(rig, system, max(plan.llama_widths))
        trials += [
            stream_trial(rig, LLAMA_DECODE, system, crowd, width) for width in plan.llama_widths
        ]
    rig.progress.expect(plan.llama_rounds * len(trials))
    interleave(
        trials,
        rig.samples,
        rig.progress,
        rounds=plan.llama_rounds,
        at_least=plan.at_least,
        until=time.monotonic() + plan.llama_s / 2,
    )


def _compare_replies(rig: Rig) -> None:
    """Check that both compute the same, without which a comparison is worthless.

    Without flash attention, which computes in half precision on a CPU, llama.cpp must give the same greedy replies, at least up
    to a token where rounding decides.

    Raises:
        RuntimeError: the replies differ.
    """
    inputs, plan = rig.inputs, rig.plan
    prompts = [inputs.prompt(plan.decode_history), inputs.prompt(PROMPT_TOKENS)]
    with rig.start_llama("--flash-attn", "off") as exact:
        systems = (rig.connect(TEXT_HTTP), LlamaClient(exact))
        ours, theirs = (_replies(client, prompts, plan.decode_tokens) for client in systems)
    if any(
        a.split()[:_SAME_WORDS] != b.split()[:_SAME_WORDS]
        for a, b in zip(ours, theirs, strict=True)
    ):
        raise RuntimeError("llama.cpp's replies are not those of the same model")


def _replies(client: Client, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[str]:
    conversation = Conversation(client)
    replies = [" ".join(conversation.ask(p, num_tokens).text.split()) for p in prompts]
    conversation.close()
    return replies
