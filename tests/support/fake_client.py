"""A client connected to a fake server, with a clock that moves only when the client sleeps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.support.clock import FakeClock
from tests.support.fake_servers import grpc_server, http_server
from tests.support.fake_sessions import FakeSessions
from tests.support.sagemaker import ENDPOINT, endpoint_of
from ts_stateful.client import RetryPolicy, Server, connect

__all__ = ["PROFILES", "TORCHSERVE", "Chance", "FakeTime", "connected"]

TORCHSERVE = ("continuous", "async", "sequence", "http")  # without an endpoint between
PROFILES = (*TORCHSERVE, "sagemaker")


class FakeTime(FakeClock):
    """A clock whose `slept` keeps every delay. The next sleep raises `raises`, as a signal handler would."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []
        self.raises: BaseException | None = None

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        self.slept.append(seconds)
        super().sleep(seconds)
        raised, self.raises = self.raises, None
        if raised is not None:
            raise raised

    def policy(self, **changes: Any) -> RetryPolicy:
        """Make the default policy with this clock and the longest delays."""
        return RetryPolicy(clock=self, random=Chance(1.0), **changes)


class Chance(Random):
    """A source of chance that always gives the same number."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self._number = number

    def random(self) -> float:
        """Return the number."""
        return self._number


@contextlib.contextmanager
def connected(
    fake: FakeSessions, time: FakeTime, *, stall_s: float = 30.0, **options: Any
) -> Iterator[Server]:
    """Connect over the transport that the fake's profile names; check that the client broke no rule."""
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
