"""Memory of idle sessions: the growth of the engine process, beside the states that sessions must hold."""

from __future__ import annotations

import time

from benchmarks.clients.conversation import Conversation
from benchmarks.clients.stateful import HttpClient
from benchmarks.model import IMAGE_BYTES, TOKEN_BYTES
from benchmarks.names import HTTP, MEMORY
from benchmarks.rig import Rig
from benchmarks.samples import Sample

__all__ = ["TITLE", "run"]

TITLE = "memory of idle sessions"

_IDLE_S = 2.5


def run(rig: Rig) -> None:
    """Sample `memory` in bytes against open sessions: of the `engine` process, and the `state` of the sessions."""
    plan = rig.plan
    client = rig.connect(HTTP)
    assert isinstance(client, HttpClient)
    [engine] = rig.server_of(HTTP).engines()
    conversations = []
    state_bytes = 0
    rig.progress.expect(plan.idle_sessions)
    for number in range(1, plan.idle_sessions + 1):
        # Each has its own image, so that none is shared.
        picture = rig.inputs.picture()
        made = Conversation.of_length(client, rig.inputs, plan.idle_history, picture)
        conversations.append(made)
        state_bytes += client.info(made.id).cached_tokens * TOKEN_BYTES + IMAGE_BYTES
        if number >= plan.idle_first and number % plan.idle_step == 0:
            time.sleep(_IDLE_S)  # the idle engine releases what passes left in its allocator
            resident = engine.memory_info().rss
            rig.samples.add(
                [
                    Sample(MEMORY, "engine", number, resident, "bytes"),
                    Sample(MEMORY, "state", number, state_bytes, "bytes"),
                ]
            )
        rig.progress.step(f"{number} sessions")
    for conversation in conversations:
        conversation.close()
