"""The engines' figures as metrics of TorchServe, where its metrics endpoint shows them.

Owns the names of the metrics. TorchServe reads metrics from the lines that the worker logs, so a line is written only when
something has changed.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs
from ts.metrics.metric_type_enum import MetricTypes

from ts_stateful.protocol.stats import Stats

__all__ = ["Gauges"]


_OF_WORKERS = {"requests_in_flight"}  # the others are engines' figures


class Gauges:
    """Publishes figures; `cache` is the context's `metrics`.

    The workers of a `group` see the same engines. They give its name instead of the model's, so that nothing is there twice.
    """

    def __init__(self, cache: Any, model_name: str, group: str | None = None) -> None:
        self._model_name = model_name
        self._group = group or model_name
        self._published: dict[str, int] = {}
        self._gauges = {
            name: cache.add_metric_to_cache(
                metric_name="Stateful" + "".join(part.title() for part in name.split("_")),
                unit="bytes" if name.endswith("_bytes") else "count",
                dimension_names=["ModelName"],
                metric_type=MetricTypes.GAUGE,
            )
            for name in Stats.__struct_fields__
        }

    def publish(self, stats: Stats) -> None:
        """Writes what has changed since the last time."""
        for name, value in structs.asdict(stats).items():
            if self._published.get(name) != value:
                self._published[name] = value
                whose = self._model_name if name in _OF_WORKERS else self._group
                self._gauges[name].add_or_update(value, [whose])
