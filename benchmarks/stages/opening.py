"""Time to open a session with an image: a new one, and a known one."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from benchmarks.clients.stateful import HttpClient
from benchmarks.model import IMAGE_TOKENS
from benchmarks.names import (
    BARE,
    CACHES,
    ENGINE,
    FIRST_OPEN,
    HTTP,
    REPEATED_OPEN,
    VISION,
    floor_name,
)
from benchmarks.rig import Rig
from benchmarks.samples import Sample, Trial, interleave

__all__ = ["TITLE", "run"]

TITLE = "time to open with an image"


def run(rig: Rig) -> None:
    """Sample both in milliseconds, beside the floor's passes, and the engine's vision tower beside stock's."""
    client = rig.connect(HTTP)
    assert isinstance(client, HttpClient)
    known = rig.inputs.picture()
    _, opened = client.timed_open(
        known
    )  # stays open: the image is still in use when it comes again
    num_tokens = opened.usage.prompt_tokens
    trials = [
        Trial(FIRST_OPEN, partial(_open, client, FIRST_OPEN, rig.inputs.picture)),
        Trial(REPEATED_OPEN, partial(_open, client, REPEATED_OPEN, lambda: known)),
    ]
    for cache in CACHES:
        for measure, work in ((FIRST_OPEN, "open_image"), (REPEATED_OPEN, "open_prefill")):
            bare = partial(_bare, rig, measure, work, num_tokens, cache)
            trials.append(Trial(f"floor, {measure}", bare))
    trials += [
        Trial(f"{system}, {VISION}", partial(_encode, rig, system)) for system in (ENGINE, BARE)
    ]
    rig.progress.expect(rig.plan.open_rounds * len(trials))
    interleave(
        trials,
        rig.samples,
        rig.progress,
        rounds=rig.plan.open_rounds,
        at_least=rig.plan.open_rounds,
        until=time.monotonic(),
    )
    client.close(opened.session_id)


def _open(client: HttpClient, measure: str, picture: Callable[[], bytes]) -> list[Sample]:
    taken_ms, opened = client.timed_open(picture())
    client.close(opened.session_id)
    return [Sample(measure, HTTP, opened.usage.prompt_tokens, taken_ms, "ms")]


def _encode(rig: Rig, system: str) -> list[Sample]:
    process = rig.engine_alone if system == ENGINE else rig.floor
    return [Sample(VISION, system, IMAGE_TOKENS, process.measure("encode_image"), "ms")]


def _bare(rig: Rig, measure: str, work: str, num_tokens: int, cache: str) -> list[Sample]:
    taken_ms = rig.floor.measure(work, num_tokens, cache)
    return [Sample(measure, floor_name(cache), num_tokens, taken_ms, "ms")]
