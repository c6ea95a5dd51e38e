"""clock: conversions between monotonic and Unix time."""

from __future__ import annotations

from tests.support.clock import FakeClock
from ts_stateful.clock import SYSTEM_CLOCK, rfc3339


def test_conversions_are_inverse() -> None:
    """A moment stays the same moment."""
    clock = FakeClock(50.0)
    assert clock.monotonic_of(clock.unix_of(80.0)) == 80.0
    assert clock.unix_of(80.0) - clock.unix() == 30.0


def test_rfc3339_is_utc() -> None:
    """As `date -u -d @1700000000 +%FT%TZ` prints it."""
    assert rfc3339(1_700_000_000.9) == "2023-11-14T22:13:20Z"
    assert FakeClock(1000.0).rfc3339(1000.0) == "2023-11-14T22:13:20Z"


def test_the_system_clock_moves() -> None:
    """Sleeping takes time by both readings."""
    monotonic, unix = SYSTEM_CLOCK.monotonic(), SYSTEM_CLOCK.unix()
    SYSTEM_CLOCK.sleep(0.001)
    assert SYSTEM_CLOCK.monotonic() > monotonic
    assert SYSTEM_CLOCK.unix() > unix
