"""A process that has as many open files as one with a thousand connections."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest

__all__ = ["many_files"]

_COUNT: Final = 1100
_LIMIT: Final = 2 * _COUNT


@contextmanager
def many_files() -> Iterator[None]:
    """Take all numbers of files that `select` accepts; skip the test where the system does not allow so many."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (limit if limit != resource.RLIM_INFINITY else _LIMIT for limit in limits)
    if hard < _LIMIT:
        pytest.skip(f"the system allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, _LIMIT), limits[1]))
    try:
        with ExitStack() as files:
            for _ in range(_COUNT):
                files.callback(os.close, os.open(os.devnull, os.O_RDONLY))
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
