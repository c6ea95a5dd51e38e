"""Spans of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.support.clock import FakeClock
from tests.support.reports import TRACE, answered_turn, pending_request
from ts_stateful.frontend.observer import AnswerReport, report_of
from ts_stateful.frontend.pending_response import PendingResponse
from ts_stateful.frontend.spans import Spans
from ts_stateful.protocol.answers import encode
from ts_stateful.protocol.errors import TurnGap

_MS = 1_000_000


def spans_of(
    pending: PendingResponse, report: AnswerReport | None = None
) -> Mapping[str, ReadableSpan]:
    """Return the spans of an answered or a dropped request by their names; now is a second after its arrival."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    clock = FakeClock()
    clock.sleep(pending.taken_at + 1 - clock.monotonic())
    spans = Spans(provider, "vision", clock)
    if report is None:
        spans.dropped(pending)
    else:
        spans.answered(pending, report)
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_turn_has_its_phases() -> None:
    """Within the trace of its client."""
    found = spans_of(pending_request(1000.0), answered_turn())
    assert list(found) == ["queue", "prefill", "decode", "chat vision"]
    turn = found["chat vision"]
    assert turn.parent is not None
    assert f"{turn.parent.trace_id:032x}" == TRACE
    assert f"{turn.parent.span_id:016x}" == "b7ad6b7169203331"
    begun = turn.start_time or 0
    assert (turn.end_time or 0) - begun == 1000 * _MS
    times = [((s.start_time or 0) - begun, (s.end_time or 0) - begun) for s in found.values()]
    assert times[:3] == [(0, 2 * _MS), (2 * _MS, 10 * _MS), (10 * _MS, 50 * _MS)]
    assert all(found[name].parent == turn.context for name in ("queue", "prefill", "decode"))


def test_a_turn_has_the_names_of_the_conventions() -> None:
    """No content, and a session's id as the logs have it."""
    assert spans_of(pending_request(), answered_turn())["chat vision"].attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "vision",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 80,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 70,
        "ts_stateful.request_id": "mine",
        "ts_stateful.session": "043a718774c572bd",
        "ts_stateful.turn": 2,
        "ts_stateful.replayed": False,
        "ts_stateful.restored_from": "store",
    }


def test_failures_are_errors() -> None:
    """By their codes; a request without a trace begins one."""
    refused = report_of(encode(TurnGap("none").to_body()))
    for report, kind in ((refused, "turn_gap"), (None, "disconnected")):
        (span,) = spans_of(pending_request(traceparent=None), report).values()
        assert span.name == "request vision"
        assert span.parent is None
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == kind


def test_a_request_that_is_no_turn_is_a_span() -> None:
    """Without the attributes of a turn."""
    (span,) = spans_of(pending_request(), AnswerReport(session_id="s")).values()
    assert span.status.status_code is StatusCode.UNSET
    assert set(span.attributes or ()) == {
        "gen_ai.request.model",
        "ts_stateful.request_id",
        "ts_stateful.session",
    }
