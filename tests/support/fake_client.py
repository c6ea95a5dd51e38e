"""A client connected to a fake server, with a clock that moves only when somebody sleeps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.support.fake_servers import grpc_server, http_server
from tests.support.fake_sessions import FakeSessions
from tests.support.sagemaker import ENDPOINT, endpoint_of
from ts_stateful.client import RetryPolicy, Server, connect

__all__ = ["PROFILES", "TORCHSERVE", "FakeTime", "connected"]

TORCHSERVE = ("continuous", "async", "sequence", "http")  # spoken to directly
PROFILES = (*TORCHSERVE, "sagemaker")


class FakeTime:
    """A clock and its sleep; `slept` keeps every delay. With `interrupts`, somebody presses Ctrl-C in the next one."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.interrupts = False

    def clock(self) -> float:
        """The time, in seconds."""
        return self.now

    def sleep(self, delay_s: float) -> None:
        """Moves the clock."""
        self.slept.append(delay_s)
        self.now += delay_s
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt

    def policy(self, **changes: Any) -> RetryPolicy:
        """The default policy by this clock, without chance."""
        return RetryPolicy(clock=self.clock, sleep=self.sleep, random=lambda: 1.0, **changes)


@contextlib.contextmanager
def connected(
    fake: FakeSessions, time: FakeTime, *, stall_s: float = 30.0, **options: Any
) -> Iterator[Server]:
    """A client of a server over the transport that the fake's profile names; checks that it broke no rule."""
    with (
        _served(fake) as url,
        connect(url, policy=time.policy(stall_s=stall_s), **options) as server,
    ):
        yield server
    assert not fake.violations, fake.violations


@contextlib.contextmanager
def _served(fake: FakeSessions) -> Iterator[str]:
    if fake.profile == "sagemaker":
        with endpoint_of(fake) as url:
            yield f"sagemaker://{ENDPOINT}?endpoint_url={url}"
    elif fake.profile == "http":
        with http_server(fake) as port:
            yield f"http://127.0.0.1:{port}"
    else:
        with grpc_server(fake) as port:
            yield f"grpc://127.0.0.1:{port}"
