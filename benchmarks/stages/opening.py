"""Time to open a session with an image: a new one, and a known one."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from benchmarks.clients.stateful import HttpClient
from benchmarks.model import IMAGE_TOKENS
from benchmarks.names import (
    ASGI,
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
_FRONTS = (HTTP, ASGI)


def run(rig: Rig) -> None:
    """Sample both in milliseconds, beside the floor's passes, and the engine's vision tower beside stock's."""
    rig.start(_FRONTS)
    known, kept, trials = rig.inputs.picture(), [], list[Trial]()
    for system in _FRONTS:
        client = rig.connect(system)
        assert isinstance(client, HttpClient)
        _, opened = client.timed_open(known)  # the image is still in use when it comes again
        kept.append((client, opened))
        for measure, picture in ((FIRST_OPEN, rig.inputs.picture), (REPEATED_OPEN, lambda: known)):
            opening = partial(_open, client, measure, system, picture)
            trials.append(Trial(f"{system}, {measure}", opening))
    num_tokens = kept[0][1].usage.prompt_tokens
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
    for client, opened in kept:
        client.close(opened.session_id)


def _open(
    client: HttpClient, measure: str, system: str, picture: Callable[[], bytes]
) -> list[Sample]:
    taken_ms, opened = client.timed_open(picture())
    client.close(opened.session_id)
    return [Sample(measure, system, opened.usage.prompt_tokens, taken_ms, "ms")]


def _encode(rig: Rig, system: str) -> list[Sample]:
    process = rig.engine_alone if system == ENGINE else rig.floor
    return [Sample(VISION, system, IMAGE_TOKENS, process.measure("encode_image"), "ms")]


def _bare(rig: Rig, measure: str, work: str, num_tokens: int, cache: str) -> list[Sample]:
    taken_ms = rig.floor.measure(work, num_tokens, cache)
    return [Sample(measure, floor_name(cache), num_tokens, taken_ms, "ms")]
