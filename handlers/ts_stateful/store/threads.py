"""Pools whose threads all run from the beginning."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

__all__ = ["started_pool"]


def started_pool(size: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of `size` running threads.

    A plain pool starts its threads on demand. Where a limit of the machine forbids a new one, it raises but keeps the
    submitted call, which may or may not run later.

    Raises:
        RuntimeError: so many threads cannot be started.
    """
    pool = ThreadPoolExecutor(size, name)
    barrier = threading.Barrier(size)
    try:
        for _ in range(size):
            pool.submit(barrier.wait)
    except RuntimeError:
        barrier.abort()
        pool.shutdown(cancel_futures=True)
        raise
    return pool
