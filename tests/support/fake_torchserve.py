"""A stand-in for TorchServe's Java side.

Requests use TorchServe's own Python code and wire format in both directions. A job fails on a response that would hang or
kill the real server.
"""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ResourceWarning)  # importing ts leaves a file open
    from ts.async_service import AsyncService
    from ts.context import Context
    from ts.protocol.otf_message_handler import create_predict_response
    from ts.service import Service

__all__ = [
    "HTTP",
    "AsyncService",
    "Context",
    "ContinuousFrontend",
    "Job",
    "Prediction",
    "SequenceFrontend",
    "Service",
    "create_predict_response",
    "decode",
    "grpc_job",
    "torchserve_service",
]

HTTP = {"Host": "x", "url_path": "", "Content-Type": "application/json"}


@dataclass(frozen=True)
class Prediction:
    """One row of a message from the worker."""

    request_id: str
    content_type: str
    status: int
    phrase: str
    headers: dict[str, str]
    body: bytes

    @property
    def more(self) -> str | None:
        """Return the header `ts_stream_next`."""
        return self.headers.get("ts_stream_next")


def decode(message: bytes) -> list[Prediction]:
    """Return the rows of a successful message, as TorchServe's `ModelResponseDecoder` reads them."""
    at = 0

    def number() -> int:
        nonlocal at
        at += 4
        return int(struct.unpack_from("!i", message, at - 4)[0])

    def data(length: int) -> bytes:
        nonlocal at
        at += length
        return bytes(message[at - length : at])

    def text() -> str:
        return data(number()).decode()

    assert (number(), text()) == (200, "Prediction success")
    rows = []
    while (length := number()) != -1:
        request_id = data(length).decode()
        content_type, status, phrase = text(), number(), text()
        headers = {text(): text() for _ in range(number())}
        rows.append(Prediction(request_id, content_type, status, phrase, headers, data(number())))
    assert at == len(message)
    return rows


@dataclass
class Job:
    """A client's request at TorchServe's frontend, `RestJob` or `GRPCJob`. `unary` is a call that gets one message."""

    request_id: str
    document: Any = None
    headers: dict[str, str] = field(default_factory=lambda: dict(HTTP))
    inputs: dict[str, bytes] | None = None
    is_http: bool = True
    unary: bool = False
    cached: bool = False  # the frontend does not send headers and body again
    responses: list[Prediction] = field(default_factory=list)
    whole: bool = False
    ended: bool = False

    def request(self) -> dict[str, Any]:
        """Return the request as `retrieve_msg` decodes it from the socket."""
        key = "body" if self.is_http else "data"
        inputs = self.inputs
        if inputs is None:
            inputs = {key: json.dumps(self.document).encode()}
        return {
            "requestId": self.request_id.encode(),
            "headers": [
                {"name": name.encode(), "value": value.encode()}
                for name, value in ({} if self.cached else self.headers).items()
            ],
            "parameters": [
                {"name": name, "contentType": "", "value": bytearray(value)}
                for name, value in ({} if self.cached else inputs).items()
            ],
        }

    def respond(self, prediction: Prediction) -> None:
        """Add a response; fail on one that the real server does not survive."""
        assert not self.ended, "a response after the last one"
        for name, value in prediction.headers.items():
            header = f"{name}: {value}"
            assert header.isascii(), "kills the worker"
            assert header.isprintable(), "kills the worker"
        if self.is_http and prediction.more is None:
            assert not self.responses, "a whole response inside a stream"
            self.whole = self.ended = True
        elif self.is_http:
            assert self.responses or prediction.more == "true", "an end without a beginning hangs"
            self.ended = prediction.more == "false"
        else:
            assert prediction.more in ("true", "false"), "NullPointerException"
            assert not (self.unary and prediction.more == "true"), "one message only"
            self.ended = prediction.more == "false"
        self.responses.append(prediction)

    @property
    def status(self) -> int:
        """Return the status that the client receives."""
        return self.responses[0].status

    @property
    def response_headers(self) -> dict[str, str]:
        """Return the headers that the client receives, without `ts_stream_next`."""
        headers = dict(self.responses[0].headers)
        headers.pop("ts_stream_next", None)
        return headers

    @property
    def body(self) -> bytes:
        """Return the body so far."""
        return b"".join(response.body for response in self.responses)

    @property
    def messages(self) -> list[Any]:
        """Return the gRPC messages so far."""
        return [json.loads(response.body) if response.body else None for response in self.responses]


def grpc_job(request_id: str, document: Any = None, **fields: Any) -> Job:
    """Make a request over gRPC."""
    return Job(request_id, document, **{"headers": {}, "is_http": False, **fields})


class _Metrics:
    request_ids: Any = None

    def add_time(self, *_: Any) -> None:
        pass


class _Socket:
    def __init__(self, sent: Callable[[bytes], None]) -> None:
        self.sendall = sent


def torchserve_service(
    entry_point: Callable[..., Any], pushed: Callable[[list[Prediction]], None]
) -> Service:
    """Make TorchServe's service of a handler; `pushed` gets the messages sent before `handle()` returns."""
    service = Service("chat", "/nowhere", None, entry_point, None, 1, metrics_cache=_Metrics())
    service.set_cl_socket(_Socket(lambda message: pushed(decode(message))))
    return service


class ContinuousFrontend:
    """TorchServe's `ContinuousBatching`: every job in flight is in every batch."""

    def __init__(self, entry_point: Callable[..., Any]) -> None:
        self.jobs: dict[str, Job] = {}
        self._service = torchserve_service(entry_point, self._pushed)

    def _pushed(self, _: list[Prediction]) -> None:
        raise AssertionError("nothing is pushed in this profile")

    def round(self, *new: Job) -> list[str]:
        """Serve one batch; return the ids of the jobs that got a response."""
        self.jobs |= {job.request_id: job for job in new}
        batch = list(self.jobs.values())
        answers = decode(self._service.predict([job.request() for job in batch]))
        for prediction in answers:
            job = self.jobs[prediction.request_id]
            job.respond(prediction)
            if prediction.more == "true" and job.is_http:
                job.cached = True
            else:
                del self.jobs[prediction.request_id]
                job.ended = True
        return [prediction.request_id for prediction in answers]


class SequenceFrontend:
    """TorchServe's `SequenceBatching`: a batch lasts until a message has no row with more to come."""

    def __init__(self, entry_point: Callable[..., Any]) -> None:
        self.messages: list[list[str]] = []
        self._jobs: dict[str, Job] = {}
        self._over = False
        self._service = torchserve_service(entry_point, self._take)

    def _take(self, predictions: list[Prediction]) -> None:
        assert not self._over, "a message after the end of the batch"
        self.messages.append([prediction.request_id for prediction in predictions])
        for prediction in predictions:
            self._jobs[prediction.request_id].respond(prediction)
        self._over = all(prediction.more != "true" for prediction in predictions)

    def batch(self, *jobs: Job) -> None:
        """Serve one batch to its end."""
        self._jobs = {job.request_id: job for job in jobs}
        self._over = False
        self._take(decode(self._service.predict([job.request() for job in jobs])))
        assert self._over, "the batch is not over"
        assert all(job.ended for job in jobs), "a job was never answered"


class MetricLog:
    """A worker's metrics cache: the metrics and their values."""

    def __init__(self) -> None:
        self.units: dict[str, str] = {}
        self.values: dict[str, list[tuple[float, list[str]]]] = {}
        self.times: list[tuple[str, float]] = []

    def add_time(self, name: str, value: float) -> None:
        """Add a time, as TorchServe does after each call."""
        self.times.append((name, value))

    def add_metric_to_cache(
        self, metric_name: str, unit: str, dimension_names: list[str], metric_type: object
    ) -> _MetricOfLog:
        """Add a metric."""
        self.units[metric_name] = unit
        self.values[metric_name] = []
        return _MetricOfLog(self.values[metric_name])


class _MetricOfLog:
    def __init__(self, values: list[tuple[float, list[str]]]) -> None:
        self._values = values

    def add_or_update(self, value: float, dimension_values: list[str]) -> None:
        self._values.append((value, dimension_values))
