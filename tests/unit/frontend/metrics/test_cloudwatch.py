"""The engines' stats as CloudWatch's metrics in the log."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tests.support.clock import FakeClock
from ts_stateful.frontend.metrics.cloudwatch import CloudWatchMetrics
from ts_stateful.protocol.stats import Stats


class Log:
    """The written lines, at a time that the test sets."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.set_time(1_800_000_000.25)  # the beginning of a minute
        self.out = io.StringIO()
        dimensions = {"EndpointName": "demo", "ModelName": "model"}
        self.metrics = CloudWatchMetrics("Sessions", dimensions, self.out, self.clock)

    def set_time(self, unix_s: float) -> None:
        """Set the Unix time."""
        self.clock.now = self.clock.monotonic_of(unix_s)

    def lines(self) -> list[dict[str, Any]]:
        """Return the written documents."""
        return [json.loads(line) for line in self.out.getvalue().splitlines()]


def test_a_line_is_in_the_embedded_metric_format() -> None:
    """Every metric and dimension that its head names is a member of the document, and the time is in milliseconds."""
    log = Log()
    log.metrics.publish(Stats(sessions_open=3, device_bytes=1024, host_bytes=5))
    (line,) = log.lines()
    assert line.pop("_aws") == {
        "Timestamp": 1_800_000_000_250,
        "CloudWatchMetrics": [
            {
                "Namespace": "Sessions",
                "Dimensions": [["EndpointName", "ModelName"]],
                "Metrics": [
                    {"Name": "SessionsOpen", "Unit": "Count"},
                    {"Name": "DeviceBytes", "Unit": "Bytes"},
                    {"Name": "HostBytes", "Unit": "Bytes"},
                ],
            }
        ],
    }
    assert line == {
        "EndpointName": "demo",
        "ModelName": "model",
        "SessionsOpen": 3,
        "DeviceBytes": 1024,
        "HostBytes": 5,
    }


def test_a_minute_has_one_line() -> None:
    """However often stats come, changed or not."""
    log = Log()
    for seconds, open_sessions in ((0, 1), (1, 2), (59, 3), (60, 3), (61, 4), (120, 4)):
        log.set_time(1_800_000_000 + seconds)
        log.metrics.publish(Stats(sessions_open=open_sessions))
    assert [line["SessionsOpen"] for line in log.lines()] == [1, 3, 4]


@pytest.mark.parametrize(
    ("environ", "dimensions"),
    [
        ({"TS_STATEFUL_CLOUDWATCH_NAMESPACE": "N"}, {"ModelName": "model"}),
        (
            {"TS_STATEFUL_CLOUDWATCH_NAMESPACE": "N", "TS_STATEFUL_ENDPOINT_NAME": "demo"},
            {"EndpointName": "demo", "ModelName": "model"},
        ),
    ],
)
def test_the_environment_switches_them_on(
    environ: dict[str, str], dimensions: dict[str, str]
) -> None:
    """By their namespace; by model and, if it is named, by endpoint."""
    out = io.StringIO()
    (metrics,) = CloudWatchMetrics.of("model", environ, out)
    metrics.publish(Stats())
    line = json.loads(out.getvalue())
    assert line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [list(dimensions)]
    assert dimensions.items() <= line.items()


@pytest.mark.parametrize("environ", [{}, {"TS_STATEFUL_CLOUDWATCH_NAMESPACE": ""}])
def test_without_a_namespace_there_are_none(environ: dict[str, str]) -> None:
    """Elsewhere they have no reader."""
    assert CloudWatchMetrics.of("model", environ, io.StringIO()) == []
