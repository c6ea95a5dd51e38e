"""Pools whose threads are all there from the beginning."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

__all__ = ["started_pool"]


def started_pool(size: int, name: str) -> ThreadPoolExecutor:
    """A pool of `size` running threads.

    By itself a pool starts them when they are needed. Where a limit of the machine forbids that, it keeps what was submitted
    and raises: nobody can tell whether that will ever run.

    Raises:
        RuntimeError: so many threads cannot be started.
    """
    pool = ThreadPoolExecutor(size, name)
    all_there = threading.Barrier(size)
    try:
        for _ in range(size):
            pool.submit(all_there.wait)
    except RuntimeError:
        all_there.abort()
        pool.shutdown(cancel_futures=True)
        raise
    return pool
