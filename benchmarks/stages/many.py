"""The effect of many idle open sessions on active ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from benchmarks.clients.conversation import Client, Conversation
from benchmarks.crowd import Crowd
from benchmarks.names import HTTP, MANY
from benchmarks.rig import Rig
from benchmarks.samples import Sample

__all__ = ["TITLE", "run"]

TITLE = "many open sessions, few active"

_NEW_TOKENS = 4
_OPENERS = 4


def run(rig: Rig) -> None:
    """Sample `many` in milliseconds: time to first token of `many_active` prompts at once, against open sessions.

    It is sampled with few open, with many, and with few again. So neither the active sessions' growth nor a drift of the
    machine counts.
    """
    plan = rig.plan
    few, rounds = plan.many_active, plan.many_rounds
    active = Crowd(rig, HTTP, few)
    openers = [rig.connect(HTTP) for _ in range(_OPENERS)]
    num_idle = plan.many_sessions - few
    rig.progress.expect(4 * rounds + num_idle)
    conversations = active.begin(few, plan.many_history)

    def measure(num_open: int, times: int) -> None:
        for _ in range(times):
            turns = active.ask(conversations, _NEW_TOKENS)
            rig.samples.add(Sample(MANY, HTTP, num_open, t.first_ms, "ms") for t in turns)
            rig.progress.step(f"{num_open} open")

    measure(few, rounds)
    with ThreadPoolExecutor(_OPENERS) as pool:
        shares = [range(number, num_idle, _OPENERS) for number in range(_OPENERS)]
        idle = list(pool.map(lambda *job: _begin(rig, *job), openers, shares))
    measure(plan.many_sessions, 2 * rounds)
    for share in idle:
        for conversation in share:
            conversation.close()
    measure(few, rounds)
    for conversation in conversations:
        conversation.close()


def _begin(rig: Rig, client: Client, share: range) -> list[Conversation]:
    made = []
    for _ in share:
        length = rig.plan.many_idle_history
        made.append(Conversation.of_length(client, rig.inputs, length, None))
        rig.progress.step("opening")
    return made
