"""Metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ts_stateful.asgi.models import Models
from ts_stateful.protocol.stats import Stats

__all__ = ["make_metrics_app"]


def make_metrics_app(models: Models) -> Starlette:
    """Return the application of the metrics' port."""
    registry = CollectorRegistry()
    registry.register(_Engines(models))

    async def metrics(_request: Request) -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    return Starlette(routes=[Route("/metrics", metrics)])


# Counts since the engine's start; all others are of the moment.
_COUNTERS = frozenset(
    {
        "images_encoded",
        "shared_hits",
        "spill_failures",
        "spill_reads",
        "steps_done",
        "store_failures",
        "tokens_generated",
    }
)


class _Engines(Collector):
    """The stats that engines report."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Yield a metric for each of the stats, by model and engine."""
        for name in Stats.__struct_fields__:
            kind = CounterMetricFamily if name in _COUNTERS else GaugeMetricFamily
            family = kind(f"ts_stateful_{name}", name.replace("_", " "), labels=("model", "engine"))
            for model in self._models:
                for index, stats in enumerate(model.dispatcher.stats_by_engine):
                    family.add_metric((model.name, str(index)), getattr(stats, name))
            yield family
