"""Retries: delays, deadlines and the count of failures."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from ts_stateful.client.errors import (
    ClientError,
    DeadlineExceeded,
    ServerUnreachable,
    StreamStalled,
)
from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.protocol.errors import StatefulError

__all__ = ["Attempts", "Deadline", "RetryPolicy"]


@dataclass(frozen=True)
class RetryPolicy:
    """The number of retries of a failed request, and the delay before each.

    The delay doubles from `first_delay_s` to `max_delay_s`, less a random share of up to a half: clients that failed together
    do not return together. A server's `retry_after_s` is added. `max_retries` counts failures in a row. A stream that is
    silent for `stall_s` is given up and resumed, and a request without an answer is sent again. With `waits_for_server`
    failures to reach the server do not count: it is asked until the deadline.
    """

    max_retries: int = 6
    first_delay_s: float = 0.1
    max_delay_s: float = 5.0
    stall_s: float = 30.0
    waits_for_server: bool = False
    clock: Clock = SYSTEM_CLOCK
    random: Random = field(default_factory=Random)

    def delay_s(self, num_failures: int, retry_after_s: float | None) -> float:
        """Return the delay after `num_failures` in a row, the last of which named `retry_after_s`."""
        step: float = min(self.max_delay_s, self.first_delay_s * 2.0 ** min(num_failures - 1, 60))
        return (retry_after_s or 0.0) + step * (0.5 + 0.5 * self.random.random())


class Deadline:
    """A point in time by a clock."""

    def __init__(self, timeout_s: float, clock: Clock) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._at = clock.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Return the seconds until the deadline; negative after it."""
        return self._at - self._clock.monotonic()

    def remaining_s(self) -> float:
        """Return the seconds until the deadline.

        Raises:
            DeadlineExceeded: none are left.
        """
        left_s = self.left_s
        if left_s <= 0:
            raise self.exceeded()
        return left_s

    def exceeded(self) -> DeadlineExceeded:
        """Return the error of a passed deadline."""
        return DeadlineExceeded(f"no answer within {self.timeout_s:g} s (timeout_s)")


class Attempts:
    """The attempts of one operation: a count of failures in a row, and the deadline."""

    def __init__(self, policy: RetryPolicy, timeout_s: float) -> None:
        self._policy = policy
        self.deadline = Deadline(timeout_s, policy.clock)
        self.num_failures = 0
        self._num_waits = 0  # for a server that is down

    def succeeded(self) -> None:
        """Start the count of failures again, since the server answered."""
        self.num_failures = self._num_waits = 0

    def wait_after(self, error: ClientError | StatefulError) -> None:
        """Wait until the next attempt; raise the error if it is final, too frequent or too late for one."""
        if isinstance(error, StreamStalled):
            return  # it has cost its time already, and ends at the deadline
        if isinstance(error, DeadlineExceeded):
            raise self.deadline.exceeded() from error  # a transport names what was left of the time
        is_waiting = self._policy.waits_for_server and isinstance(error, ServerUnreachable)
        is_last = self.num_failures >= self._policy.max_retries
        if not error.retryable or (is_last and not is_waiting):
            raise error
        if is_waiting:
            self._num_waits += 1
        else:
            self.num_failures += 1
        retry_after_s = getattr(error, "retry_after_s", None)
        delay_s = self._policy.delay_s(self.num_failures + self._num_waits, retry_after_s)
        if delay_s >= self.deadline.left_s:
            raise error
        self._policy.clock.sleep(delay_s)
