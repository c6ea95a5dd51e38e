"""A rate of tokens: what it lets through, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import FakeClock
from ts_stateful.engine.token_bucket import TokenBucket


def test_a_minutes_tokens_may_come_at_once() -> None:
    """After them it is empty until the rate has brought one."""
    clock = FakeClock()
    bucket = TokenBucket(120, clock)
    assert bucket.wait_s() == 0
    bucket.take(120)
    assert bucket.wait_s() == 0.5
    clock.now += 0.25
    assert bucket.wait_s() == 0.25
    clock.now += 0.25
    assert bucket.wait_s() == 0


def test_a_debt_is_waited_for() -> None:
    """A turn that took more than there was."""
    clock = FakeClock()
    bucket = TokenBucket(60, clock)
    bucket.take(160)
    assert bucket.wait_s() == 101


def test_a_pause_saves_up_a_minute_at_most() -> None:
    """And no more."""
    clock = FakeClock()
    bucket = TokenBucket(60, clock)
    clock.now += 3600
    bucket.take(60)
    assert bucket.wait_s() == 1


@given(
    st.integers(1, 10**6),
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 10**6)), max_size=20),
)
def test_the_wait_is_true(per_minute: int, spent: list[tuple[float, int]]) -> None:
    """After exactly that time there is a token, and shortly before there is none."""
    clock = FakeClock()
    bucket = TokenBucket(per_minute, clock)
    for pause, tokens in spent:
        clock.now += pause
        bucket.take(tokens)
    wait_s = bucket.wait_s()
    if wait_s > 0.01:
        clock.now += wait_s * 0.999
        assert bucket.wait_s() > 0
        clock.now += wait_s * 0.001 + 1e-6 * (1 + wait_s)
        assert bucket.wait_s() == 0
