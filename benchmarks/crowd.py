"""Many conversations at the same time, each with its own thread and connection."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.clients.conversation import Conversation, Turn
from benchmarks.names import LLAMA, RECOMPUTE, TEXT_ASGI, TEXT_HTTP, VLLM
from benchmarks.plan import PROMPT_TOKENS
from benchmarks.rig import Rig

__all__ = ["Crowd"]

_BEGINNERS = 4  # conversations begun at the same time, which is not measured


class Crowd:
    """`size` connections to one system."""

    def __init__(self, rig: Rig, system: str, size: int) -> None:
        self._rig = rig
        self._image = (
            None if system in (TEXT_ASGI, TEXT_HTTP, LLAMA, VLLM) else rig.inputs.picture()
        )
        self._beginners = 1 if system == RECOMPUTE else _BEGINNERS
        self._clients = [rig.connect(system) for _ in range(size)]

    def begin(self, size: int, num_tokens: int) -> list[Conversation]:
        """Begin `size` conversations of that length, each on its own connection."""
        inputs, image = self._rig.inputs, self._image
        with ThreadPoolExecutor(self._beginners) as pool:
            return list(
                pool.map(
                    lambda client: Conversation.of_length(client, inputs, num_tokens, image),
                    self._clients[:size],
                )
            )

    def ask(self, conversations: Sequence[Conversation], max_new_tokens: int) -> list[Turn]:
        """Send one prompt in each at the same time; return after all replies."""
        prompts = [self._rig.inputs.prompt(PROMPT_TOKENS) for _ in conversations]
        together = threading.Barrier(len(conversations))

        def ask(number: int) -> Turn:
            together.wait()
            return conversations[number].ask(prompts[number], max_new_tokens)

        with ThreadPoolExecutor(len(conversations)) as pool:
            return list(pool.map(ask, range(len(conversations))))
