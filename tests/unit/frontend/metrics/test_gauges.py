"""The engines' stats as TorchServe's metrics."""

from __future__ import annotations

import pytest

from tests.support.fake_torchserve import MetricLog
from ts_stateful.frontend.handler import Gauges
from ts_stateful.protocol.stats import Stats


def test_stats_become_gauges_of_the_model() -> None:
    """Each has its name and its unit."""
    log = MetricLog()
    Gauges(log, "chat", "2.0").publish(Stats(sessions_open=3, device_bytes=1024))
    assert log.values["StatefulSessionsOpen"] == [(3, ["chat", "2.0"])]
    assert log.values["StatefulDeviceBytes"] == [(1024, ["chat", "2.0"])]
    assert log.units["StatefulDeviceBytes"] == "bytes"


def test_only_what_has_changed_is_written() -> None:
    """A quiet server writes no lines."""
    log = MetricLog()
    gauges = Gauges(log, "chat", "1.0")
    gauges.publish(Stats(sessions_open=1))
    gauges.publish(Stats(sessions_open=1))
    gauges.publish(Stats(sessions_open=2))
    assert [value for value, _ in log.values["StatefulSessionsOpen"]] == [1, 2]
    assert len(log.values["StatefulHostBytes"]) == 1


@pytest.mark.parametrize("count", [0, 1, 3])
def test_stats_of_several_engines_add_up(count: int) -> None:
    """A worker publishes one sum. They have one store, whose bytes are not added."""
    total = sum([Stats(1, 2, 3, 4, 5, 6)] * count, Stats())
    assert total == Stats(count, 2 * count, 3 * count, 4 * count, 5 * count, 6 * count)
    store = Stats(store_capacity_bytes=100, store_free_bytes=7)
    assert sum([Stats(), *[store] * count], Stats()) == (store if count else Stats())
