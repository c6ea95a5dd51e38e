"""While a store is silent, one call waits for it."""

from __future__ import annotations

import contextlib

import pytest

from tests.support.clock import FakeClock
from ts_stateful.store.base import StoreUnavailable
from ts_stateful.store.gate import Gate


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def gate(clock: FakeClock) -> Gate:
    return Gate(TimeoutError, clock=clock)


def fail(gate: Gate, clock: FakeClock, error: Exception) -> None:
    """Make a call that takes a second, and fails."""
    with contextlib.suppress(type(error)), gate.passed():
        clock.sleep(1)
        raise error


def test_calls_go_to_a_store_that_answers(gate: Gate, clock: FakeClock) -> None:
    """As many at once as there are. A refusal is an answer."""
    fail(gate, clock, ConnectionRefusedError())
    with gate.passed(), gate.passed(), gate.passed():
        pass


def test_one_call_waits_for_a_silent_store(gate: Gate, clock: FakeClock) -> None:
    """The others fail at once, until it is answered."""
    fail(gate, clock, TimeoutError())
    for _ in range(3):
        with contextlib.suppress(TimeoutError), gate.passed():
            with pytest.raises(StoreUnavailable, match="another call waits"), gate.passed():
                raise AssertionError
            clock.sleep(1)
            raise TimeoutError
    with gate.passed():
        clock.sleep(1)
    with gate.passed(), gate.passed():
        pass


def test_a_refusal_ends_the_silence(gate: Gate, clock: FakeClock) -> None:
    """Such as that of a server that starts."""
    fail(gate, clock, TimeoutError())
    fail(gate, clock, ConnectionRefusedError())
    with gate.passed(), gate.passed():
        pass


def test_a_store_that_answers_others_is_not_silent(gate: Gate, clock: FakeClock) -> None:
    """One large value may take too long."""
    with contextlib.suppress(TimeoutError), gate.passed():
        clock.sleep(1)
        with gate.passed():
            pass
        clock.sleep(1)
        raise TimeoutError
    with gate.passed(), gate.passed():
        pass


def test_a_call_that_began_before_the_silence_may_end_it(gate: Gate, clock: FakeClock) -> None:
    """Its answer came after all."""
    with gate.passed():
        clock.sleep(1)
        fail(gate, clock, TimeoutError())
    with gate.passed(), gate.passed():
        pass


def test_a_gate_without_timeouts_is_open(clock: FakeClock) -> None:
    """That of a cluster, whose other servers may answer."""
    gate = Gate(clock=clock)
    fail(gate, clock, TimeoutError())
    with gate.passed(), gate.passed():
        pass
