"""The processes of a pool that decode images and clips."""

from __future__ import annotations

from ts_stateful.media.decoder.pool import DecoderPool

__all__ = ["idle_pids"]


def idle_pids(pool: DecoderPool) -> tuple[int, ...]:
    """Return the processes that wait for an image or a clip."""
    with pool._lock:
        return tuple(process.pid for process in pool._idle)
