"""The reports of a process: its metrics, and its traces at a real collector."""

from __future__ import annotations

import logging
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.support.ports import free_port
from tests.support.reports import TRACE, answered_turn, pending_request
from ts_stateful.frontend.metrics.prometheus import MeasuredModel
from ts_stateful.frontend.observation import Observation, TurnLog
from ts_stateful.frontend.observer import AnswerReport, Observers
from ts_stateful.protocol.stats import Stats

_ENGINES: Any = SimpleNamespace(
    stats_by_engine=[Stats(sessions_open=2)], engines_up=[True], restarts_by_engine=[(0, 0.0)]
)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """A collector of OpenTelemetry, which keeps the spans that it gets."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()

    def Export(self, request: Any, context: Any) -> Any:
        """Keep the spans of a request."""
        for resource in request.resource_spans:
            named = {one.key: one.value.string_value for one in resource.resource.attributes}
            self.services.add(named["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()


def test_traces_reach_the_collector_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over gRPC, when the process ends at the latest."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    url = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    observation = Observation({"OTEL_EXPORTER_OTLP_ENDPOINT": url})
    observation.of("chat").answered(pending_request(), answered_turn())
    observation.close()
    server.stop(None)
    assert {span.name for span in collector.spans} == {"queue", "prefill", "decode", "chat chat"}
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert collector.services == {"ts-stateful"}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_traces_are_off_by_default(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No package of OpenTelemetry is loaded then."""
    monkeypatch.setitem(sys.modules, "ts_stateful.frontend.spans", None)
    observation = Observation(environ)
    observation.of("chat").answered(pending_request(), answered_turn())
    observation.close()


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are served without traces."""
    monkeypatch.setitem(sys.modules, "ts_stateful.frontend.spans", None)
    observation = Observation({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"})
    observation.of("chat").answered(pending_request(), answered_turn())
    assert "pip install 'torchserve-stateful[otel]'" in caplog.text


def test_metrics_have_a_port_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    """One that is in use leaves the model without them, and says so."""
    port = free_port()
    observation = Observation({})
    observation.export(MeasuredModel("chat", _ENGINES, 256), port)
    observation.of("chat").answered(pending_request(), answered_turn())
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert 'ts_stateful_turns_total{finish_reason="stop",model="chat"} 1.0' in text
    assert 'ts_stateful_sessions_open{engine="0",model="chat"} 2.0' in text
    with caplog.at_level(logging.ERROR):
        Observation({}).export(MeasuredModel("chat", _ENGINES, 256), port)
    assert f"no metrics at 127.0.0.1:{port} (handler.metricsPort)" in caplog.text
    observation.close()
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_turn_is_a_line_without_content(caplog: pytest.LogCaptureFixture) -> None:
    """With its request, its trace, a hash of its session, its tokens and its times."""
    log = Observers(TurnLog(), TurnLog())
    with caplog.at_level(logging.INFO, "ts_stateful.turns"):
        log.answered(pending_request(), answered_turn())
        log.answered(pending_request(), AnswerReport(session_id="s"))
        log.dropped(pending_request())
    assert caplog.messages == 2 * [
        f"request=mine trace={TRACE} session=043a718774c572bd turn=2 prompt_tokens=80 cached_tokens=70"
        " tokens=5 queue_ms=2.0 first_token_ms=10.0 total_ms=50.0 finish=stop"
    ]
    assert caplog.records[0].fields["cached_tokens"] == 70  # type: ignore[attr-defined]


def test_what_is_unknown_is_a_dash(caplog: pytest.LogCaptureFixture) -> None:
    """A request without a trace or a session."""
    with caplog.at_level(logging.INFO, "ts_stateful.turns"):
        TurnLog().answered(pending_request(traceparent=None), AnswerReport(finish_reason="length"))
    assert caplog.messages[0].startswith("request=mine trace=- session=- turn=- ")
