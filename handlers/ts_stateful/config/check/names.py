"""Names at the top of a model-config.yaml, which TorchServe ignores where it does not know them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ts_stateful.config.check.finding import Finding, warning
from ts_stateful.protocol.unknown import similar

__all__ = ["check_names"]

# Of TorchServe 0.12.0's `ModelConfig`, and of this package.
_KNOWN = (
    *("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout"),
    *("startupTimeout", "deviceType", "deviceIds", "parallelLevel", "parallelType", "torchrun"),
    *("maxRetryTimeoutInSec", "clientTimeoutInMills", "jobQueueSize", "useJobTicket", "useVenv"),
    *("continuousBatching", "sequenceBatching", "asyncCommunication", "maxNumSequence"),
    *("maxSequenceJobQueueSize", "sequenceMaxIdleMSec", "sequenceTimeoutMSec", "handler"),
    *("pippy", "deepspeed", "pt2", "micro_batching", "runtimeType"),
)


def check_names(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Find keys that are similar to a known one; others may be of a handler."""
    for key in document:
        if key not in _KNOWN and (remedy := similar(str(key), _KNOWN)):
            yield warning(
                str(key), f"there is no such key, so it has no effect{remedy}", "correct its name"
            )
