"""The metrics of the front, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from ts_stateful.asgi.routes import make_metrics_app
from ts_stateful.frontend.metrics.prometheus import EngineMetrics, FrontMetrics, MeasuredModel
from ts_stateful.frontend.observer import AnswerReport, report_of
from ts_stateful.frontend.pending_response import PendingResponse
from ts_stateful.protocol.answers import encode
from ts_stateful.protocol.errors import TurnGap
from ts_stateful.protocol.stats import COUNTERS, Stats

_OF_PROCESSES = ("engine_restarts", "engine_recovery_seconds")
_PENDING = cast("PendingResponse", None)  # which metrics do not read
_ANSWER = b"""{"text": "red", "session_id": "s", "turn": 2, "finish_reason": "stop",
 "usage": {"prompt_tokens": 80, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 70}},
 "timing": {"queue_ms": 2.0, "prefill_ms": 8.0, "first_token_ms": 10.0, "total_ms": 50.0, "restored_from": "store"}}"""


def values(registry: CollectorRegistry) -> Mapping[str, float]:
    """All samples by name and labels without the model's."""
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            labels = {name: text for name, text in sample.labels.items() if name != "model"}
            found["".join((sample.name, *map(str, labels.values())))] = sample.value
    return found


def test_a_turn_is_counted_once() -> None:
    """By its times, tokens and end; one that is answered from its record is not."""
    registry = CollectorRegistry()
    metrics = FrontMetrics(registry).of("chat")
    metrics.answered(_PENDING, report_of(_ANSWER))
    replayed = _ANSWER.replace(b'"turn": 2', b'"turn": 2, "replayed": true')
    metrics.answered(_PENDING, report_of(replayed))
    found = values(registry)
    assert found["ts_stateful_first_token_seconds_sum"] == 0.01
    assert found["ts_stateful_first_token_seconds_bucket0.01"] == 1
    assert found["ts_stateful_inter_token_seconds_sum"] == 0.01
    assert found["ts_stateful_queue_seconds_sum"] == 0.002
    assert found["ts_stateful_turn_seconds_count"] == 1
    assert found["ts_stateful_turns_totalstop"] == 1
    assert found["ts_stateful_turns_restored_totalstore"] == 1
    assert found["ts_stateful_prompt_tokens_total"] == 80
    assert found["ts_stateful_cached_tokens_total"] == 70
    assert found["ts_stateful_generated_tokens_total"] == 5


def test_errors_are_counted_by_their_codes() -> None:
    """Clients that disconnect are counted beside them; an answer without numbers is neither."""
    registry = CollectorRegistry()
    metrics = FrontMetrics(registry).of("chat")
    metrics.answered(_PENDING, report_of(encode(TurnGap("none").to_body())))
    metrics.answered(_PENDING, report_of(b"\x00raw"))
    metrics.answered(_PENDING, report_of(b'{"error": {"code": "an output of a model"}}'))
    metrics.answered(_PENDING, report_of(b'{"session_id": "s", "closed": true}'))
    metrics.dropped(_PENDING)
    found = values(registry)
    assert found["ts_stateful_errors_totalturn_gap"] == 1
    assert found["ts_stateful_errors_totaldisconnected"] == 1
    assert found["ts_stateful_turn_seconds_count"] == 0
    assert "an output of a model" not in "".join(found)


def test_every_series_of_a_model_begins_at_zero() -> None:
    """A rate of Prometheus sees the first turn and the first error of each kind."""
    registry = CollectorRegistry()
    FrontMetrics(registry).of("chat")
    found = values(registry)
    for name in (
        "first_token_seconds_count",
        "inter_token_seconds_bucket0.01",
        "turns_totallength",
        "turns_restored_totalstore",
        "cached_tokens_total",
        "errors_totalsession_moved",
        "errors_totaldisconnected",
    ):
        assert found[f"ts_stateful_{name}"] == 0
    assert "ts_stateful_errors_total" not in found


def test_a_reply_of_one_token_has_no_time_between_two() -> None:
    """Nor has one of none."""
    assert AnswerReport().per_token_ms is None


def test_each_engine_has_its_own_values() -> None:
    """Counts end in `_total`; the limit of sessions is the model's. An engine that is down has its counts alone."""
    stats = [
        Stats(sessions_open=2, evictions=3),
        Stats(sessions_open=5),
        Stats(requests_in_flight=1, evictions=7),
    ]
    engines: Any = SimpleNamespace(
        stats_by_engine=stats,
        engines_up=[True, True, False],
        restarts_by_engine=[(0, 0.0), (2, 1.5), (1, 0.0)],
    )
    registry = CollectorRegistry()
    registry.register(EngineMetrics([MeasuredModel("chat", engines, max_sessions=256)]))
    text = TestClient(make_metrics_app(registry)).get("/metrics").text
    for line in (
        'ts_stateful_sessions_open{engine="1",model="chat"} 5.0',
        'ts_stateful_evictions_total{engine="0",model="chat"} 3.0',
        'ts_stateful_engine_up{engine="2",model="chat"} 0.0',
        'ts_stateful_evictions_total{engine="2",model="chat"} 7.0',
        'ts_stateful_requests_in_flight{engine="2",model="chat"} 1.0',
        'ts_stateful_engine_restarts_total{engine="1",model="chat"} 2.0',
        'ts_stateful_engine_recovery_seconds_total{engine="1",model="chat"} 1.5',
        'ts_stateful_sessions_limit{model="chat"} 256.0',
    ):
        assert line in text
    held = {line for line in text.splitlines() if line.startswith("ts_stateful_") and '"2"' in line}
    held = {line.partition("{")[0] for line in held} - {
        f"ts_stateful_{name}_total" for name in (*COUNTERS, *_OF_PROCESSES)
    }
    assert held == {"ts_stateful_requests_in_flight", "ts_stateful_engine_up"}
