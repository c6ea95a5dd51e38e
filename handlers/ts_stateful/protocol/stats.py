"""The figures of an engine, or of several together.

Owns what operators may watch; no session is named. Engines count, workers publish.
"""

from __future__ import annotations

from msgspec import Struct, structs

__all__ = ["Stats"]


class Stats(Struct, frozen=True):
    """Sessions and turns now, bytes held now by tier, tokens, images and steps since the engine's start.

    `store_failures` counts writes that a store has not taken. `spilled_bytes` are those of KV states in the store,
    `spill_reads` counts sessions that got theirs back, `spill_failures` what could not be written or read of them.
    `shared_hits` counts what was there already when a session asked for it; `shared_bytes` is its part of `device_bytes`.
    `requests_in_flight` are those that a worker waits for, and `upload_bytes` parts of images that came ahead of their prompts.
    """

    sessions_open: int = 0
    turns_in_progress: int = 0
    device_bytes: int = 0
    host_bytes: int = 0
    tokens_generated: int = 0
    images_encoded: int = 0
    shared_hits: int = 0
    shared_bytes: int = 0
    steps_done: int = 0
    store_failures: int = 0
    spilled_bytes: int = 0
    spill_reads: int = 0
    spill_failures: int = 0
    requests_in_flight: int = 0
    upload_bytes: int = 0

    def __add__(self, other: Stats) -> Stats:
        return Stats(*map(sum, zip(structs.astuple(self), structs.astuple(other), strict=True)))
