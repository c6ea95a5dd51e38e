"""Time to first token of a short prompt, against the length of the conversation before it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from benchmarks.clients.conversation import Client, Conversation
from benchmarks.names import (
    ASYNC_GRPC,
    ASYNC_HTTP,
    CACHES,
    GRPC,
    HTTP,
    IMPLICIT,
    LLAMA,
    RECOMPUTE,
    TEXT_ASGI,
    TEXT_HTTP,
    TTFT,
    VLLM,
    floor_name,
)
from benchmarks.plan import PROMPT_TOKENS
from benchmarks.rig import Rig
from benchmarks.samples import Sample, Trial, interleave

__all__ = ["TITLE", "run", "run_systems"]

TITLE = "time to first token against history"

_SYSTEMS = (HTTP, IMPLICIT, GRPC, ASYNC_HTTP, ASYNC_GRPC, RECOMPUTE)
_NEW_TOKENS = 4  # of a reply: the first token is not the last one, as in practice


def run(rig: Rig) -> None:
    """Sample `ttft` in milliseconds."""
    rig.start(_SYSTEMS)
    rig.floor.measure("first_token", 300, PROMPT_TOKENS, CACHES[0])  # warm
    floors = [
        Trial(f"floor {history}", partial(_bare, rig, history, cache))
        for history in rig.plan.histories
        for cache in CACHES
    ]
    run_systems(rig, TTFT, _SYSTEMS, floors, rig.plan.batches, rig.plan.ttft_s)


def run_systems(
    rig: Rig,
    measure: str,
    systems: Sequence[str],
    floors: Sequence[Trial],
    batches: int,
    budget_s: float,
) -> None:
    """Sample these systems, interleaved with `floors`."""
    plan = rig.plan
    clients = {system: rig.connect(system) for system in systems}
    until = time.monotonic() + budget_s
    num_trials = len(systems) * len(plan.histories) + len(floors)
    rig.progress.expect(batches * plan.asks * num_trials)
    for batch in range(batches):
        if batch >= plan.at_least and time.monotonic() > until:
            break
        conversations = {
            (system, history): _begun(rig, clients[system], system, history)
            for system in systems
            for history in plan.histories
        }
        trials = [
            Trial(
                f"{system} {history}",
                partial(_ask, rig, measure, system, history, conversation),
                every=_every(system),
            )
            for (system, history), conversation in conversations.items()
        ]
        interleave(
            [*trials, *floors],
            rig.samples,
            rig.progress,
            rounds=plan.asks,
            at_least=plan.asks,
            until=until,
        )
        for conversation in conversations.values():
            conversation.close()


def _every(system: str) -> int:
    """Return the rounds in which a system is sampled: recomputing takes many times longer than the others."""
    return 2 if system == RECOMPUTE else 1


def _begun(rig: Rig, client: Client, system: str, history: int) -> Conversation:
    """Begin a conversation whose mean length at all its prompts will be `history`."""
    num_asks = -(-rig.plan.asks // _every(system))
    growth = (PROMPT_TOKENS + _NEW_TOKENS) * (num_asks - 1)
    image = None if system in (TEXT_ASGI, TEXT_HTTP, LLAMA, VLLM) else rig.inputs.picture()
    return Conversation.of_length(client, rig.inputs, history - growth // 2, image)


def _ask(
    rig: Rig, measure: str, system: str, history: int, conversation: Conversation
) -> list[Sample]:
    exact = conversation.num_tokens
    turn = conversation.ask(rig.inputs.prompt(PROMPT_TOKENS), _NEW_TOKENS)
    return [Sample(measure, system, history, turn.first_ms, "ms", at=exact)]


def _bare(rig: Rig, history: int, cache: str) -> list[Sample]:
    taken_ms = rig.floor.measure("first_token", history, PROMPT_TOKENS, cache)
    return [Sample(TTFT, floor_name(cache), history, taken_ms, "ms", at=history)]
