"""Statistics that engines count and workers publish."""

from __future__ import annotations

from msgspec import Struct, structs

__all__ = ["COUNTERS", "Stats"]

_HELD = ("sessions_open", "turns_in_progress", "requests_in_flight", "implicit_sessions")


class Stats(Struct, frozen=True):
    """Current sessions, turns and bytes by tier; tokens, images and steps since the engine's start.

    - `tokens_drafted`: guessed tokens of replies; `tokens_accepted`: those that were right.
    - `store_failures`: failed writes to the store.
    - `spilled_bytes`: bytes of KV states in the store; `spill_reads`: sessions whose states were read back;
      `spill_failures`: failed reads and writes of states.
    - `shared_hits`: embeddings and prefixes that a session found in the cache; `shared_bytes`: their part of `device_bytes`.
    - `requests_in_flight`: requests that a worker waits for.
    - `upload_bytes`: bytes of image parts that no prompt has used yet.
    - `device_budget_bytes`, `host_budget_bytes`: the limits of the two tiers; 0 if there is none.
    - `sessions_opened`, `_adopted`, `_closed`, `_expired`, `_parked`: sessions that came or went that way.
    - `evictions`: sessions whose tensors left the device for want of room.
    - `implicit_sessions`: conversations without a session header that wait for their next request; `implicit_bytes`: their part
      of `device_bytes`; `implicit_continued`: requests that continued one.
    - `store_calls`, `store_seconds`: calls to the store that ended, and the time that they took together.
    - `store_capacity_bytes`, `store_free_bytes`: of the store of all engines; 0 and 0 if it has no bound, or is not known.
    """

    sessions_open: int = 0
    turns_in_progress: int = 0
    device_bytes: int = 0
    host_bytes: int = 0
    tokens_generated: int = 0
    images_encoded: int = 0
    tokens_drafted: int = 0
    tokens_accepted: int = 0
    shared_hits: int = 0
    shared_bytes: int = 0
    steps_done: int = 0
    store_failures: int = 0
    spilled_bytes: int = 0
    spill_reads: int = 0
    spill_failures: int = 0
    requests_in_flight: int = 0
    upload_bytes: int = 0
    device_budget_bytes: int = 0
    host_budget_bytes: int = 0
    sessions_opened: int = 0
    sessions_adopted: int = 0
    sessions_closed: int = 0
    sessions_expired: int = 0
    sessions_parked: int = 0
    evictions: int = 0
    store_calls: int = 0
    store_seconds: float = 0.0
    implicit_sessions: int = 0
    implicit_bytes: int = 0
    implicit_continued: int = 0
    store_capacity_bytes: int = 0
    store_free_bytes: int = 0

    def __add__(self, other: Stats) -> Stats:
        added = Stats(*map(sum, zip(structs.astuple(self), structs.astuple(other), strict=True)))
        store = self if self.store_capacity_bytes else other
        return structs.replace(
            added,
            store_capacity_bytes=store.store_capacity_bytes,
            store_free_bytes=store.store_free_bytes,
        )

    @property
    def counts(self) -> Stats:
        """The counts alone, which stay when their engine exits."""
        return Stats(**{name: getattr(self, name) for name in COUNTERS})


COUNTERS = frozenset(
    name for name in Stats.__struct_fields__ if not name.endswith("_bytes") and name not in _HELD
)
"""Counts since the engine's start; all others are of the moment."""
