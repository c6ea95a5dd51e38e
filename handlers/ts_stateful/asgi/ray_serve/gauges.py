"""The engines' stats as metrics of Ray."""

from __future__ import annotations

from msgspec import structs
from ray.serve.metrics import Gauge

from ts_stateful.protocol.stats import Stats

__all__ = ["RayGauges"]


class RayGauges:
    """A gauge `ts_stateful_...` for each of the stats, which Ray labels with the replica. A `StatsPublisher`."""

    def __init__(self) -> None:
        self._gauges = {
            name: Gauge(f"ts_stateful_{name}", description=name.replace("_", " "))
            for name in Stats.__struct_fields__
        }

    def publish(self, stats: Stats) -> None:
        """See `StatsPublisher`."""
        for name, value in structs.asdict(stats).items():
            self._gauges[name].set(value)
