"""The engines' stats as metrics of CloudWatch, which on SageMaker receives the log.

CloudWatch reads them from a line of JSON in the log, the embedded metric format:
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html.
log4j2.xml leaves the line unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

import msgspec

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.protocol.stats import Stats

__all__ = ["CloudWatchMetrics"]

_NAMESPACE = "TS_STATEFUL_CLOUDWATCH_NAMESPACE"
_ENDPOINT_NAME = "TS_STATEFUL_ENDPOINT_NAME"
_INTERVAL_S = 60  # CloudWatch keeps a value per minute; an idle server writes too, so that sums over instances are complete

_UNITS = {"SessionsOpen": "Count", "DeviceBytes": "Bytes", "HostBytes": "Bytes"}


class CloudWatchMetrics:
    """The writer of one line to `out` in every minute of Unix time."""

    def __init__(
        self,
        namespace: str,
        dimensions: Mapping[str, str],
        out: TextIO,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._namespace = namespace
        self._dimensions = dict(dimensions)
        self._out = out
        self._clock = clock
        self._minute: int | None = None

    @classmethod
    def of(cls, model: str, environ: Mapping[str, str], out: TextIO) -> list[CloudWatchMetrics]:
        """Return a writer to `out`, by model and, if it is known, by endpoint; none if not configured."""
        namespace, endpoint = environ.get(_NAMESPACE), environ.get(_ENDPOINT_NAME)
        dimensions = {"EndpointName": endpoint} if endpoint else {}
        return [cls(namespace, {**dimensions, "ModelName": model}, out)] if namespace else []

    def publish(self, stats: Stats) -> None:
        """Write the stats, if none were written in this minute."""
        now_s = self._clock.unix()
        minute = int(now_s // _INTERVAL_S)
        if minute == self._minute:
            return
        self._minute = minute
        line = {
            "_aws": {
                "Timestamp": int(now_s * 1000),
                "CloudWatchMetrics": [
                    {
                        "Namespace": self._namespace,
                        "Dimensions": [list(self._dimensions)],
                        "Metrics": [{"Name": name, "Unit": unit} for name, unit in _UNITS.items()],
                    }
                ],
            },
            **self._dimensions,
            "SessionsOpen": stats.sessions_open,
            "DeviceBytes": stats.device_bytes,
            "HostBytes": stats.host_bytes,
        }
        # One write: other threads write to the log as well.
        self._out.write(msgspec.json.encode(line).decode() + "\n")
        self._out.flush()
