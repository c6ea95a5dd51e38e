"""The reports of a process that takes requests: metrics, the log of turns, and traces."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from ts_stateful.frontend.audit import shortened
from ts_stateful.frontend.metrics.prometheus import EngineMetrics, FrontMetrics, MeasuredModel
from ts_stateful.frontend.observer import AnswerReport, Observer, Observers
from ts_stateful.frontend.pending_response import PendingResponse

__all__ = ["Observation", "TurnLog"]

logger = logging.getLogger(__name__)
_turns = logging.getLogger("ts_stateful.turns")

_HOST = "127.0.0.1"
_COLLECTORS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class TurnLog:
    """One line for each turn at INFO; in JSON its values are fields. An `Observer`."""

    def answered(self, pending: PendingResponse, report: AnswerReport) -> None:
        """See `Observer`."""
        is_turn = report.finish_reason is not None and not report.replayed
        if not is_turn or not _turns.isEnabledFor(logging.INFO):
            return
        usage, timing = report.usage, report.timing
        fields = {
            "request": pending.known.request_id,
            "trace": pending.known.trace_id,
            "session": shortened(report.session_id),
            "turn": report.turn,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "tokens": usage.completion_tokens,
            "queue_ms": round(timing.queue_ms, 1),
            "first_token_ms": round(timing.first_token_ms, 1),
            "total_ms": round(timing.total_ms, 1),
            "finish": report.finish_reason,
        }
        pairs = (f"{name}={'-' if value is None else value}" for name, value in fields.items())
        _turns.info("%s", " ".join(pairs), extra={"fields": fields})

    def dropped(self, pending: PendingResponse) -> None:
        """See `Observer`."""


class Observation:
    """The receivers of reports. Metrics are in `registry`. Traces are on if OpenTelemetry's variables name a collector."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.registry = CollectorRegistry()
        self.metrics = FrontMetrics(self.registry)
        self._traces = _provider(environ)
        self._exports: list[WSGIServer] = []

    def of(self, model: str) -> Observer:
        """Return the receiver of one model's reports."""
        observers: list[Observer] = [TurnLog(), self.metrics.of(model)]
        if self._traces is not None:
            from ts_stateful.frontend.spans import Spans  # noqa: PLC0415 - an extra

            observers.append(Spans(self._traces, model))
        return Observers(*observers)

    def export(self, model: MeasuredModel, port: int) -> None:
        """Serve the metrics of a process with one model at a port of loopback. Where that fails, only log it."""
        self.registry.register(EngineMetrics([model]))
        try:
            server, _ = start_http_server(port, _HOST, self.registry)
        except OSError as error:
            logger.error(
                "no metrics at %s:%d (handler.metricsPort): %s", _HOST, port, error.strerror
            )
        else:
            self._exports.append(server)

    def close(self) -> None:
        """Send the last spans, and serve no more metrics."""
        if self._traces is not None:
            self._traces.shutdown()
        for server in self._exports:
            server.shutdown()
            server.server_close()


def _provider(environ: Mapping[str, str]) -> Any | None:
    is_off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_off or environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return None
    if not any(environ.get(name) for name in _COLLECTORS):
        return None
    try:
        from ts_stateful.frontend.spans import make_provider  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        logger.warning(
            "no traces: %s is missing; install it: pip install 'torchserve-stateful[otel]'",
            error.name,
        )
        return None
    return make_provider(environ)
