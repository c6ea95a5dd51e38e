"""Ports for the servers of tests, which nobody else takes between their choice and their use.

What the kernel names is free again until somebody listens there, which takes a server seconds, and a server that is stopped for
a while wants its own back: meanwhile the kernel may name it to another test, or connect from it. So these are below those that
the kernel names, each is given out once, and every worker of xdist has others.
"""

from __future__ import annotations

import itertools
import os

from ts_stateful.ports import Ports

__all__ = ["free_port", "free_ports"]

_FIRST = 20_000
_NUM_WORKERS = 16
_EACH = 12_000 // _NUM_WORKERS  # the kernel's begin at 32768


def _candidates() -> itertools.cycle[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _NUM_WORKERS
    first, begin = (
        _FIRST + worker * _EACH,
        os.getpid() % _EACH,
    )  # not those of a run beside this one
    return itertools.cycle([first + (begin + number) % _EACH for number in range(_EACH)])


_ports = _candidates()


def free_port() -> int:
    """One on the loopback address."""
    return next(port for port in _ports if not Ports(http=port).taken())


def free_ports() -> Ports:
    """All that a TorchServe needs."""
    return Ports(*(free_port() for _ in range(5)))
