"""The longest pause of a stream during another session's long prompt."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.clients.conversation import Client, Conversation, Turn
from benchmarks.names import HTTP, PAUSE
from benchmarks.rig import Rig
from benchmarks.samples import Sample

__all__ = ["TITLE", "run"]

TITLE = "pause of a stream during a long prefill"

_STREAM_TOKENS = 160
_WAIT_S = 0.2  # until the stream runs


def run(rig: Rig) -> None:
    """Sample `pause` in milliseconds: the longest wait between two parts of a stream, undisturbed and disturbed."""
    plan = rig.plan
    streaming, prompting = rig.connect(HTTP), rig.connect(HTTP)
    rig.progress.expect(2 * plan.pause_rounds)
    for _ in range(plan.pause_rounds):
        for system, num_tokens in (("alone", 0), ("beside a prefill", plan.pause_prompt)):
            longest_ms = _longest_pause_ms(rig, streaming, prompting, num_tokens)
            rig.samples.add([Sample(PAUSE, system, num_tokens, longest_ms, "ms")])
            rig.progress.step(system)


def _longest_pause_ms(rig: Rig, streaming: Client, prompting: Client, num_tokens: int) -> float:
    length = rig.plan.decode_history
    stream = Conversation.of_length(streaming, rig.inputs, length, None)
    other = Conversation(prompting)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stream.ask, rig.inputs.prompt(20), _STREAM_TOKENS)
        time.sleep(_WAIT_S)
        if num_tokens:
            other.ask(rig.inputs.prompt(num_tokens), 1)
        turn = running.result()
    stream.close()
    other.close()
    return _longest_ms(turn)


def _longest_ms(turn: Turn) -> float:
    return 1000 * max(b.at - a.at for a, b in itertools.pairwise(turn.arrivals))
