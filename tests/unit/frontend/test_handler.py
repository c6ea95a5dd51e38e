"""The handler: what it checks at start, and what it puts together."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ts.protocol import otf_message_handler as torchserve

from tests.support.fake_dispatcher import ScriptedDispatcher, last
from tests.support.fake_torchserve import (
    Context,
    ContinuousFrontend,
    Job,
    MetricLog,
    SequenceFrontend,
)
from ts_stateful.config.schema import ConfigError
from ts_stateful.frontend.delivery.pull import ContinuousDelivery
from ts_stateful.frontend.delivery.push import SequenceDelivery
from ts_stateful.frontend.delivery.push_async import AsyncDelivery
from ts_stateful.frontend.handler import SessionHandler
from ts_stateful.frontend.inbox import Mailbox
from ts_stateful.frontend.parsing.parts import BatchReader
from ts_stateful.process.worker.dispatch import ServedModel, StatsPublisher
from ts_stateful.protocol.stats import Stats

_BASE: dict[str, Any] = {
    "minWorkers": 1,
    "maxWorkers": 1,
    "maxBatchDelay": 1,
    "startupTimeout": 1200,
    "responseTimeout": 120,
}
_CONTINUOUS = {**_BASE, "continuousBatching": True, "batchSize": 8}
_SEQUENCE = {
    **_BASE,
    "sequenceBatching": True,
    "batchSize": 8,
    "maxNumSequence": 8,
    "sequenceMaxIdleMSec": 60_000,
}
_ASYNC = {**_BASE, "asyncCommunication": True, "batchSize": 1}


class _Handler(SessionHandler):
    """Answers everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatcher_factory = self._start

    def _start(
        self, model: ServedModel, mailbox: Mailbox, publishers: Sequence[StatsPublisher]
    ) -> ScriptedDispatcher:
        self.model, self.publishers = model, publishers
        self.dispatcher = ScriptedDispatcher(mailbox, lambda s: [last(s.request_id, {"a": 1})])
        return self.dispatcher


def initialized(document: dict[str, Any], metrics: MetricLog | None = None) -> _Handler:
    handler = _Handler()
    handler.initialize(
        Context(
            "chat",
            "/models/chat",
            None,
            1,
            None,
            "0.12.0",
            metrics=metrics or MetricLog(),
            model_yaml_config=document,
        )
    )
    return handler


@pytest.mark.parametrize(
    ("document", "delivery"),
    [(_CONTINUOUS, ContinuousDelivery), (_SEQUENCE, SequenceDelivery), (_ASYNC, AsyncDelivery)],
)
def test_the_profile_chooses_the_delivery(document: dict[str, Any], delivery: type) -> None:
    """And the dispatcher gets the model's name and folder."""
    handler = initialized(document)
    assert isinstance(handler._delivery, delivery)
    assert handler.initialized
    model = handler.model
    assert (model.document, model.name, model.folder) == (document, "chat", Path("/models/chat"))


@pytest.mark.parametrize(("document", "count"), [(_CONTINUOUS, 0), (_SEQUENCE, 1)])
def test_calls_that_wait_are_not_timed(document: dict[str, Any], count: int) -> None:
    """Each time would be a line that TorchServe reads before it reads the answers of the call."""
    metrics = MetricLog()
    initialized(document, metrics)
    metrics.add_time("PredictionTime", 5.0)
    assert len(metrics.times) == count


@pytest.mark.parametrize(("batching", "waits_s"), [({}, 0.1), ({"sequenceBatching": True}, 0.005)])
def test_a_call_waits_longer_where_requests_ring(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, batching: dict[str, Any], waits_s: float
) -> None:
    """Requests of sequences wait in queues of their own, from which none rings."""
    monkeypatch.setenv("TS_STATEFUL_BELLS", str(tmp_path))
    delivery = initialized({**_SEQUENCE, **_CONTINUOUS, **batching} if batching else _CONTINUOUS)
    assert isinstance(delivery._delivery, ContinuousDelivery)
    assert delivery._delivery._pace.wait_s == waits_s
    assert (tmp_path / "chat.bell").is_fifo() != bool(batching)


def test_cloudwatch_gets_the_stats_by_the_name_of_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard output, of which TorchServe makes the log."""
    monkeypatch.setenv("TS_STATEFUL_CLOUDWATCH_NAMESPACE", "N")
    handler = initialized(_CONTINUOUS)
    for publisher in handler.publishers:
        publisher.publish(Stats(sessions_open=3))
    line = json.loads(capsys.readouterr().out)
    assert (line["ModelName"], line["SessionsOpen"]) == ("chat", 3)


def test_a_request_goes_through() -> None:
    """From TorchServe's batch to its answer."""
    job = Job("r", {"prompt": "hi"})
    ContinuousFrontend(initialized(_CONTINUOUS).handle).round(job)
    assert (job.status, job.body) == (200, b'{"a": 1}')


def test_a_request_beyond_the_bytes_in_flight_is_refused() -> None:
    """With 503 and the time to wait, before it is parsed; its turn comes when the others have ended."""
    limits = {"maxInFlightBytes": 1000, "maxJsonBytes": 100}
    handler = initialized({**_CONTINUOUS, "handler": {"model": "m", "limits": limits}})
    frontend = ContinuousFrontend(handler.handle)
    jobs = [Job(name, {"type": "hello", "x": name * 200}) for name in "abc"]
    for job, in_flight in zip(jobs, (900, 0, 700), strict=True):
        handler.dispatcher.bytes_in_flight = in_flight
        frontend.round(job)
    codes = [json.loads(job.responses[0].body)["error"]["code"] for job in jobs]
    assert codes == ["server_busy", "context_too_long", "context_too_long"]
    assert [job.responses[0].status for job in jobs] == [503, 413, 413]
    assert jobs[0].responses[0].headers["Retry-After"] == "1"


def test_the_worker_is_prepared_for_hostile_requests() -> None:
    """The collector skips what was loaded at the start, and the parts of a request are bounded as they are read."""
    gc.unfreeze()
    initialized(_CONTINUOUS)
    assert gc.get_freeze_count() > 0
    assert isinstance(torchserve._retrieve_inference_msg.__self__, BatchReader)


def test_the_sequence_profile_takes_over_ids_that_the_frontend_makes() -> None:
    """Else a client without an id would get one that its next request could not use."""
    headers = {
        "Host": "x",
        "url_path": "",
        "ts_request_sequence_id": "ts-seq-1",
        "ts_request_sequence_start": "true",
    }
    job = Job("r", {"type": "info"}, headers=headers)
    SequenceFrontend(initialized(_SEQUENCE).handle).batch(job)
    assert job.status == 400


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({**_CONTINUOUS, "handler": {"nonsense": 1}}, "nonsense"),
        ({**_CONTINUOUS, "maxWorkers": 2}, "maxWorkers"),
        ({**_ASYNC, "batchSize": 2}, "batchSize"),
        ({}, "continuousBatching"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(document: dict[str, Any], named: str) -> None:
    """Before any engine starts, by the name of the key."""
    with pytest.raises(ConfigError, match=named):
        initialized(document)


def test_a_configuration_that_is_slow_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """And works."""
    caplog.set_level(logging.WARNING)
    initialized({**_CONTINUOUS, "maxBatchDelay": 100})
    assert "maxBatchDelay" in caplog.text


def test_a_header_name_that_only_the_frontend_knows_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the sequence profile, where users would share a session."""
    monkeypatch.setenv("TS_HEADER_KEY_SEQUENCE_ID", "X-Session")
    initialized(_CONTINUOUS)
    with pytest.raises(ConfigError, match="TS_REQUEST_SEQUENCE_ID"):
        initialized(_SEQUENCE)
