"""The engines' figures as metrics of CloudWatch, where the worker's log goes to CloudWatch, as it does on SageMaker.

Owns the line of JSON in the log from which CloudWatch makes them, the embedded metric format:
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html.
log4j2.xml passes the line on as it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

import msgspec

from ts_stateful.protocol.stats import Stats

__all__ = ["CloudWatchMetrics"]

_NAMESPACE = "TS_STATEFUL_CLOUDWATCH_NAMESPACE"
_ENDPOINT_NAME = "TS_STATEFUL_ENDPOINT_NAME"
_INTERVAL_S = 60  # CloudWatch keeps a value a minute; a quiet server's too, so that sums over instances are whole

_UNITS = {"SessionsOpen": "Count", "DeviceBytes": "Bytes", "HostBytes": "Bytes"}


class CloudWatchMetrics:
    """Writes a line to `out` in every minute of `clock`, which is Unix time in seconds."""

    def __init__(
        self,
        namespace: str,
        dimensions: Mapping[str, str],
        *,
        out: TextIO,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._namespace = namespace
        self._dimensions = dict(dimensions)
        self._out = out
        self._clock = clock
        self._minute: int | None = None

    @classmethod
    def of(cls, model_name: str, environ: Mapping[str, str]) -> CloudWatchMetrics | None:
        """Those of a model on standard output, by model and, where it is known, by endpoint; None if none are wanted."""
        namespace = environ.get(_NAMESPACE)
        if not namespace:
            return None
        endpoint = environ.get(_ENDPOINT_NAME)
        dimensions = {"EndpointName": endpoint} if endpoint else {}
        return cls(namespace, {**dimensions, "ModelName": model_name}, out=sys.stdout)

    def publish(self, stats: Stats) -> None:
        """Writes the figures, if none were written in this minute."""
        now_s = self._clock()
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
        # In one piece: other threads write to the log as well.
        self._out.write(msgspec.json.encode(line).decode() + "\n")
        self._out.flush()
