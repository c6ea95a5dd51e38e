"""The engines' stats as TorchServe's metrics, which it reads from lines that the worker logs."""

from __future__ import annotations

from typing import Any

from msgspec import structs
from ts.metrics.metric_type_enum import MetricTypes

from ts_stateful.protocol.stats import Stats

__all__ = ["Gauges"]


class Gauges:
    """Gauges of the stats of one version of a model; `cache` is the context's `metrics`."""

    def __init__(self, cache: Any, model_name: str, version: str) -> None:
        self._dimensions = [model_name, version]
        self._published: dict[str, int] = {}
        self._gauges = {
            name: cache.add_metric_to_cache(
                metric_name="Stateful" + "".join(part.title() for part in name.split("_")),
                unit="bytes" if name.endswith("_bytes") else "count",
                dimension_names=["ModelName", "ModelVersion"],
                metric_type=MetricTypes.GAUGE,
            )
            for name in Stats.__struct_fields__
        }

    def publish(self, stats: Stats) -> None:
        """Write the values that changed since the last call."""
        for name, value in structs.asdict(stats).items():
            if self._published.get(name) != value:
                self._published[name] = value
                self._gauges[name].add_or_update(value, self._dimensions)
