"""A thousand sessions in the memory of fifty: device, host memory, store, and what is computed again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Harness, reference_reply
from tests.support.tiny import llama
from ts_stateful.protocol.requests import Close, Prompt
from ts_stateful.store.backends.file import FileStore

NUM_SESSIONS = 1000
NEW_TOKENS = 2
COMES_FROM = {"device": None, "host": "host", "store": "store", "record": "replay"}


class Crowd:
    """An engine whose sessions are asked many at a time; its bytes are looked at between any two steps."""

    def __init__(self, harness: Harness, at_a_time: int) -> None:
        self.harness = harness
        self.at_a_time = at_a_time
        self.table = harness.engine.table

    def ask(
        self, asked: Sequence[tuple[str, str]], *, creates_session: bool = False
    ) -> Iterator[dict[str, Any]]:
        """The answers, each with the tier in which its session was when it was asked."""
        for start in range(0, len(asked), self.at_a_time):
            requests, group = [], asked[start : start + self.at_a_time]
            for name, text in group:
                tier = "device" if creates_session else self.table.get(name).state.residency.value
                prompt = Prompt(
                    session_id=name, prompt=text, max_new_tokens=NEW_TOKENS, ignore_eos=True
                )
                requests.append(
                    (self.harness.submit(prompt, creates_session=creates_session), tier)
                )
            self.settle()
            yield from ({**self.harness.last(request), "was": tier} for request, tier in requests)

    def settle(self) -> None:
        """Steps until nothing is left to do."""
        self.watch()
        self.harness.pump()
        while self.harness.engine.busy:
            self.harness.engine.step()
            self.watch()
            self.harness.pump()
        self.harness.clock.now += 0.01

    def watch(self) -> None:
        """No budget is exceeded."""
        limits = self.table.limits
        if limits.device_bytes is not None:
            assert self.table.device_bytes <= limits.device_bytes
            assert self.table.tally.host_bytes <= limits.host_bytes


def config(**handler: Any) -> dict[str, Any]:
    """A whole prompt is one step."""
    settings = {"sharedCacheBytes": 0, "prefillChunk": 512, **handler}
    return {"maxNumSequence": NUM_SESSIONS, "handler": settings}


@pytest.mark.timeout(600)  # seconds; for machines that have other work to do
def test_a_thousand_sessions_in_the_memory_of_fifty(tmp_path: Path) -> None:
    """Whoever comes back, from wherever, gets what an engine with room for all gives; in the end nothing is left."""
    model, store = llama(), FileStore(tmp_path / "store")
    undisturbed = Crowd(Harness(model, config()), at_a_time=50)
    names = [f"session-{number}" for number in range(NUM_SESSIONS)]
    chosen = random.Random(1)
    first = [(name, f"Say {chosen.randrange(10**6)}.") for name in names]
    expected = [answer["text"] for answer in undisturbed.ask(first, creates_session=True)]
    whole = undisturbed.table.device_bytes
    spill = {"kvSpill": True, "kvSpillBytes": int(0.7 * whole)}
    crowd = Crowd(Harness(model, config(store=spill), store=store), at_a_time=15)
    crowd.table.limits = crowd.table.limits._replace(
        device_bytes=int(0.04 * whole), host_bytes=int(0.01 * whole)
    )
    assert [answer["text"] for answer in crowd.ask(first, creates_session=True)] == expected
    again = [(name, "And then?") for name in [*names[:-61:-1], *chosen.sample(names, 240)]]
    again = list(dict.fromkeys(again))
    expected = [answer["text"] for answer in undisturbed.ask(again)]
    answers = list(crowd.ask(again))
    assert [answer["text"] for answer in answers] == expected
    assert {answer["was"] for answer in answers} == set(COMES_FROM)
    for answer in answers:
        assert answer["timing"]["restored_from"] == COMES_FROM[answer["was"]]
    for name, _ in again[::60]:
        reference_reply(model, crowd.harness, name, NEW_TOKENS)
    assert crowd.harness.engine.stats().spill_failures == 0
    crowd.harness.engine.check_integrity()
    for name in names:
        crowd.harness.submit(Close(session_id=name))
    crowd.settle()
    stats = crowd.harness.engine.stats()
    assert (stats.device_bytes, stats.host_bytes, stats.spilled_bytes) == (0, 0, 0)
    assert not [key for top in ("kv", "sessions", "blobs", "adopted") for key in store.list(top)]
