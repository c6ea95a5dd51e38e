"""When to try again, and until when.

Owns deadlines, back-off and the counting of failures; knows nothing of transports. Clock, sleep and random numbers come from
outside.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from ts_stateful.client.errors import DeadlineExceeded, StreamStalled, is_retryable

__all__ = ["Attempts", "Deadline", "RetryPolicy"]


@dataclass(frozen=True)
class RetryPolicy:
    """How often a failed request is repeated, and how long a client waits before.

    The delay doubles from `first_delay_s` to `max_delay_s`, less a random share of up to a half, so that clients that failed
    together do not return together. A server's `retry_after_s` is honoured. `max_retries` counts failures in a row.
    A stream that is silent for `stall_s` is given up and resumed, and a request without an answer is sent again.
    """

    max_retries: int = 6
    first_delay_s: float = 0.1
    max_delay_s: float = 5.0
    stall_s: float = 30.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random

    def delay_s(self, num_failures: int, retry_after_s: float | None) -> float:
        """How long to wait after that many failures in a row, the last of which named `retry_after_s`."""
        step: float = min(self.max_delay_s, self.first_delay_s * 2.0 ** (num_failures - 1))
        return (retry_after_s or 0.0) + step * (0.5 + 0.5 * self.random())


class Deadline:
    """A point in time, by the policy's clock."""

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._at = clock() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; negative behind it."""
        return self._at - self._clock()

    def remaining_s(self) -> float:
        """Seconds until the deadline.

        Raises:
            DeadlineExceeded: there are none.
        """
        left_s = self.left_s
        if left_s <= 0:
            raise DeadlineExceeded(f"no answer within {self.timeout_s:g} s")
        return left_s


class Attempts:
    """The attempts of one operation: counts failures in a row and waits between them, within the deadline."""

    def __init__(self, policy: RetryPolicy, timeout_s: float) -> None:
        self._policy = policy
        self.deadline = Deadline(timeout_s, policy.clock)
        self.num_failures = 0

    def succeeded(self) -> None:
        """The server answered: failures before this count no more."""
        self.num_failures = 0

    def wait_after(self, error: Exception) -> None:
        """Waits for the time to try again; raises the error if it is final, too frequent, or too late to try again."""
        if isinstance(error, StreamStalled):
            return  # it has cost its time already, and ends at the deadline
        if not is_retryable(error) or self.num_failures >= self._policy.max_retries:
            raise error
        self.num_failures += 1
        retry_after_s = getattr(error, "retry_after_s", None)
        delay_s = self._policy.delay_s(self.num_failures, retry_after_s)
        if delay_s >= self.deadline.left_s:
            raise error
        self._policy.sleep(delay_s)
