"""Metrics for Prometheus: of requests and turns, as a front sees them, and the stats that engines report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ts_stateful.frontend.dialects.served_model import UnknownPath
from ts_stateful.frontend.observer import AnswerReport
from ts_stateful.frontend.pending_response import PendingResponse
from ts_stateful.process.worker.dispatch import Dispatcher
from ts_stateful.protocol import errors
from ts_stateful.protocol.stats import COUNTERS, Stats

__all__ = ["EngineMetrics", "FrontMetrics", "MeasuredModel"]

_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)
_LONG_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_DISCONNECTED = "disconnected"
_OF_FRONT = "requests_in_flight"  # of the stats, the one that the front counts itself, while an engine is down as well
_FINISH_REASONS = ("stop", "length", "cancelled")
_SOURCES = ("host", "store", "replay")
_TYPED = {getattr(errors, name).code for name in errors.__all__} - {""} | {UnknownPath.code}
_CODES = (*_TYPED, _DISCONNECTED)


class FrontMetrics:
    """The metrics of all models of one front. An `Observer` for each of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(
                f"ts_stateful_{name}_seconds", text, ["model"], buckets=buckets, registry=registry
            )

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"ts_stateful_{name}", text, ["model", *labels], registry=registry)

        self._first = histogram(
            "first_token", "From a prompt's arrival to its first token.", _LONG_S
        )
        self._between = histogram(
            "inter_token", "Mean time between two tokens of a reply, once for each turn.", _SHORT_S
        )
        self._queue = histogram(
            "queue", "From a prompt's arrival to the start of its turn.", _LONG_S
        )
        self._turn = histogram("turn", "From a prompt's arrival to the end of its turn.", _LONG_S)
        self._turns = counter("turns", "Turns by their finish reason.", "finish_reason")
        self._restored = counter(
            "turns_restored", "Turns whose states came from elsewhere.", "source"
        )
        self._prompt = counter("prompt_tokens", "Tokens of the contexts of turns.")
        self._cached = counter("cached_tokens", "Those of them that were not computed again.")
        self._generated = counter("generated_tokens", "Tokens of replies.")
        self._errors = counter("errors", "Requests that were answered by an error.", "code")
        self._errors.labels("", errors.ModelNotFound.code)  # of models that are missing

    def of(self, model: str) -> ModelMetrics:
        """Return the observer of one model.

        All series begin at 0: a rate of Prometheus misses the first event of a series that begins with it.
        """
        for histogram in (self._first, self._between, self._queue, self._turn):
            histogram.labels(model)
        for counter in (self._prompt, self._cached, self._generated):
            counter.labels(model)
        for counter, values in (
            (self._turns, _FINISH_REASONS),
            (self._restored, _SOURCES),
            (self._errors, _CODES),
        ):
            for value in values:
                counter.labels(model, value)
        return ModelMetrics(self, model)

    def turn(self, model: str, report: AnswerReport) -> None:
        """Count a turn that was computed."""
        timing, usage = report.timing, report.usage
        self._first.labels(model).observe(timing.first_token_ms / 1000)
        self._queue.labels(model).observe(timing.queue_ms / 1000)
        self._turn.labels(model).observe(timing.total_ms / 1000)
        if report.per_token_ms is not None:
            self._between.labels(model).observe(report.per_token_ms / 1000)
        self._turns.labels(model, report.finish_reason).inc()
        if timing.restored_from is not None:
            self._restored.labels(model, timing.restored_from).inc()
        self._prompt.labels(model).inc(usage.prompt_tokens)
        self._cached.labels(model).inc(usage.prompt_tokens_details.cached_tokens)
        self._generated.labels(model).inc(usage.completion_tokens)

    def error(self, model: str, code: str) -> None:
        """Count a request that failed, or whose client has disconnected. Outputs of models may look like errors of any code."""
        if code in _CODES:
            self._errors.labels(model, code).inc()


class ModelMetrics:
    """The metrics of one model. An `Observer`."""

    def __init__(self, metrics: FrontMetrics, model: str) -> None:
        self._metrics = metrics
        self._model = model

    def answered(self, pending: PendingResponse, report: AnswerReport) -> None:
        """See `Observer`."""
        if report.error is not None:
            self._metrics.error(self._model, report.error.code)
        elif report.finish_reason is not None and not report.replayed:
            self._metrics.turn(self._model, report)

    def dropped(self, pending: PendingResponse) -> None:
        """See `Observer`."""
        self._metrics.error(self._model, _DISCONNECTED)


class MeasuredModel(NamedTuple):
    """A model with its engines."""

    name: str
    engines: Dispatcher
    max_sessions: int


class EngineMetrics(Collector):
    """The stats that engines report, and the state of each engine's connection."""

    def __init__(self, models: Iterable[MeasuredModel]) -> None:
        self._models = tuple(models)

    def collect(self) -> Iterator[Metric]:
        """Yield a metric for each of the stats, by model and engine. One that is down has its counts alone."""
        for name in Stats.__struct_fields__:
            family = _family(name, name.replace("_", " "), is_counter=name in COUNTERS)
            for model in self._models:
                ups = model.engines.engines_up
                for index, (stats, is_up) in enumerate(
                    zip(model.engines.stats_by_engine, ups, strict=True)
                ):
                    if is_up or name in COUNTERS or name == _OF_FRONT:
                        family.add_metric((model.name, str(index)), getattr(stats, name))
            yield family
        yield from self._of_processes()
        limit = GaugeMetricFamily(
            "ts_stateful_sessions_limit", "Open sessions that there may be.", labels=("model",)
        )
        for model in self._models:
            limit.add_metric((model.name,), model.max_sessions)
        yield limit

    def _of_processes(self) -> Iterator[Metric]:
        up = _family("engine_up", "1 if the engine is connected.", is_counter=False)
        restarts = _family("engine_restarts", "Engines that died.", is_counter=True)
        recovery = _family("engine_recovery_seconds", "Time without an engine.", is_counter=True)
        for model in self._models:
            found = model.engines.restarts_by_engine
            for index, is_up in enumerate(model.engines.engines_up):
                labels = (model.name, str(index))
                up.add_metric(labels, float(is_up))
                restarts.add_metric(labels, found[index][0])
                recovery.add_metric(labels, found[index][1])
        yield from (up, restarts, recovery)


def _family(name: str, text: str, *, is_counter: bool) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if is_counter else GaugeMetricFamily
    return kind(f"ts_stateful_{name}", text, labels=("model", "engine"))
