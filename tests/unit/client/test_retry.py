"""Back-off and deadlines, on a clock of their own."""

from __future__ import annotations

import pytest

from tests.support.fake_client import Chance, FakeTime
from ts_stateful.client import (
    ClientError,
    DeadlineExceeded,
    ProtocolError,
    RetryPolicy,
    ServerUnreachable,
    StreamStalled,
)
from ts_stateful.client.retry import Attempts, Deadline
from ts_stateful.protocol.errors import InvalidRequest, QueueFull, StatefulError


def test_delays_are_bounded_and_spread() -> None:
    """A delay doubles up to the largest and is shortened by chance by at most a half."""
    longest, shortest = RetryPolicy(random=Chance(1.0)), RetryPolicy(random=Chance(0.0))
    assert longest.delay_s(20, None) == 5.0
    assert shortest.delay_s(20, None) == 2.5
    assert longest.delay_s(1, 3.0) == pytest.approx(3.1)


def test_a_deadline_passes() -> None:
    """The time left shrinks with the clock; at zero there is an error that names the timeout."""
    time = FakeTime()
    deadline = Deadline(2.0, time)
    assert deadline.remaining_s() == 2.0
    time.now += 2
    assert deadline.left_s == 0
    with pytest.raises(DeadlineExceeded, match="2 s"):
        deadline.remaining_s()


@pytest.mark.parametrize(
    "error", [InvalidRequest("no"), ProtocolError("no"), DeadlineExceeded("late")]
)
def test_final_errors_are_raised_at_once(error: ClientError | StatefulError) -> None:
    """An error that would come again is not retried."""
    time = FakeTime()
    with pytest.raises(type(error)):
        Attempts(time.policy(), 60).wait_after(error)
    assert time.slept == []


def test_progress_starts_the_count_again() -> None:
    """Only failures in a row count."""
    time = FakeTime()
    attempts = Attempts(time.policy(max_retries=1), 60)
    for _ in range(3):
        attempts.wait_after(ServerUnreachable("gone"))
        attempts.succeeded()
    attempts.wait_after(QueueFull("full", retry_after_s=1.0))
    with pytest.raises(QueueFull):
        attempts.wait_after(QueueFull("full", retry_after_s=1.0))
    assert time.slept == pytest.approx([0.1, 0.1, 0.1, 1.1])


def test_a_stall_costs_no_further_time() -> None:
    """A stalled stream is resumed at once, and does not use up the retries."""
    time = FakeTime()
    attempts = Attempts(time.policy(max_retries=0), 60)
    for _ in range(5):
        attempts.wait_after(StreamStalled("silent"))
    assert time.slept == []


def test_a_server_that_is_down_can_be_waited_for() -> None:
    """With `waits_for_server` only the deadline ends the attempts to reach it; other errors are counted."""
    time = FakeTime()
    attempts = Attempts(time.policy(max_retries=1, waits_for_server=True), 60)
    for _ in range(9):
        attempts.wait_after(ServerUnreachable("down"))
    assert (len(time.slept), max(time.slept)) == (9, 5.0)
    attempts.wait_after(QueueFull("full"))
    with pytest.raises(QueueFull):
        attempts.wait_after(QueueFull("full"))
