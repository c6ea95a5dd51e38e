"""The line about failed writes in the log of the server."""

from __future__ import annotations

import pytest

from ts_stateful.process.worker.store_alarm import StoreAlarm
from ts_stateful.protocol.stats import Stats


def test_writes_that_begin_to_fail_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """While they go on failing there is no other; after writes that succeed, or an engine's death, there is."""
    alarm = StoreAlarm()
    lines = []
    for failures in (0, 1, 3, 3, 4, 0, 1):
        alarm.publish(Stats(store_failures=failures))
        lines.append(len(caplog.records))
    assert lines == [0, 1, 1, 1, 2, 2, 3]
    assert "writes to the store failed" in caplog.text
