"""Spans of OpenTelemetry, one for each request. Needs the extra `otel`.

Attributes are those of https://opentelemetry.io/docs/specs/semconv/gen-ai/, and our own with the prefix `ts_stateful.`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.frontend.audit import shortened
from ts_stateful.frontend.observer import AnswerReport
from ts_stateful.frontend.pending_response import PendingResponse
from ts_stateful.version import __version__

__all__ = ["Spans", "make_provider"]

_SERVICE: Final = "ts-stateful"
_NS: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
_read_parent = TraceContextTextMapPropagator().extract


def make_provider(environ: Mapping[str, str]) -> TracerProvider:
    """Return a provider that sends to the collector which OpenTelemetry's own variables name, over gRPC."""
    named = {} if "OTEL_SERVICE_NAME" in environ else {SERVICE_NAME: _SERVICE}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class Spans:
    """A span for each request of one model; that of a turn has spans for its queue, prefill and decode. An `Observer`.

    A request is part of the trace that its `traceparent` names.
    """

    def __init__(
        self, provider: trace.TracerProvider, model: str, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._tracer = provider.get_tracer("ts_stateful", __version__)
        self._model = model
        self._clock = clock

    def answered(self, pending: PendingResponse, report: AnswerReport) -> None:
        """See `Observer`."""
        span, begun = self._begin(pending, "request" if report.finish_reason is None else "chat")
        span.set_attributes(dict(_attributes(report)))
        if report.error is not None:
            span.set_attribute("error.type", report.error.code)
            span.set_status(trace.StatusCode.ERROR)
        if report.finish_reason is not None:
            self._add_phases(span, begun, report)
        span.end(self._now_ns())

    def dropped(self, pending: PendingResponse) -> None:
        """See `Observer`."""
        span, _ = self._begin(pending, "request")
        span.set_attribute("error.type", "disconnected")
        span.set_status(trace.StatusCode.ERROR)
        span.end(self._now_ns())

    def _begin(self, pending: PendingResponse, name: str) -> tuple[trace.Span, int]:
        known = pending.known
        carrier = {} if known.traceparent is None else {"traceparent": known.traceparent}
        begun = int(self._clock.unix_of(pending.taken_at) * _NS)
        span = self._tracer.start_span(
            f"{name} {self._model}",
            context=_read_parent(carrier),
            kind=trace.SpanKind.SERVER,
            start_time=begun,
            attributes={
                "gen_ai.request.model": self._model,
                "ts_stateful.request_id": known.request_id,
            },
        )
        return span, begun

    def _add_phases(self, parent: trace.Span, begun: int, report: AnswerReport) -> None:
        timing = report.timing
        context = trace.set_span_in_context(parent)
        ends = (("queue", timing.queue_ms), ("prefill", timing.first_token_ms))
        at = begun
        for name, end_ms in (*ends, ("decode", timing.total_ms)):
            end = max(at, begun + int(end_ms * _NS_PER_MS))
            self._tracer.start_span(name, context=context, start_time=at).end(end)
            at = end

    def _now_ns(self) -> int:
        return int(self._clock.unix() * _NS)


def _attributes(report: AnswerReport) -> Iterator[tuple[str, Any]]:
    if report.session_id is not None:
        yield "ts_stateful.session", shortened(report.session_id)
    if report.finish_reason is None:
        return
    usage, timing = report.usage, report.timing
    yield "gen_ai.operation.name", "chat"
    yield "gen_ai.response.finish_reasons", (report.finish_reason,)
    yield "gen_ai.usage.input_tokens", usage.prompt_tokens
    yield "gen_ai.usage.output_tokens", usage.completion_tokens
    yield "gen_ai.usage.cache_read.input_tokens", usage.prompt_tokens_details.cached_tokens
    yield "ts_stateful.turn", report.turn or 0
    yield "ts_stateful.replayed", report.replayed
    if timing.restored_from is not None:
        yield "ts_stateful.restored_from", timing.restored_from
