"""Whether a configuration works: TorchServe's keys, this package's keys and the profile, judged against each other.

Owns the rules. What would hang, leak or lose sessions on TorchServe 0.12.0 is an error and comes with its cure; what would be
slow or risky is a warning. Knows nothing of processes: the same check runs at start and offline (`ts-stateful check`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from ts_stateful.config import (
    Config,
    ConfigError,
    FrontendConfig,
    HandlerConfig,
    Profile,
    load_config,
)

__all__ = ["Finding", "check_config", "check_file"]

_MIN_RESPONSE_TIMEOUT_S = 10
_SMALL_RESPONSE_TIMEOUT_S = 60


@dataclass(frozen=True)
class Finding:
    """One thing to change in a configuration: which key, why, and how."""

    severity: Literal["error", "warning"]
    key: str
    message: str
    cure: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.key}: {self.message}; {self.cure}"


def check_file(path: Path) -> list[Finding]:
    """What is wrong with a `model-config.yaml`; a file that cannot be read or parsed is a finding too."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        return [_error(str(path), f"cannot be read: {error}", "give a readable file")]
    except yaml.YAMLError as error:
        return [_error(str(path), f"is not YAML: {error}", "correct the syntax")]
    if not isinstance(document, dict | None):
        return [_error(str(path), "is not a mapping of keys to values", "see model-config.yaml")]
    try:
        return check_config(load_config(document))
    except ConfigError as error:
        return [_error(str(path), str(error), "see the table of keys in the README")]


def check_config(config: Config) -> list[Finding]:
    """What is wrong with a configuration, errors first."""
    findings = [
        *_check_mode(config.frontend),
        *_check_workers(config),
        *_check_batch(config.frontend),
        *_check_profile(config.frontend),
        *_check_timeouts(config),
        *_check_sessions(config),
        *_check_budgets(config.handler),
        *_check_safety(config.handler),
    ]
    return sorted(findings, key=lambda finding: finding.severity != "error")


def _error(key: str, message: str, cure: str) -> Finding:
    return Finding("error", key, message, cure)


def _warning(key: str, message: str, cure: str) -> Finding:
    return Finding("warning", key, message, cure)


def _check_mode(frontend: FrontendConfig) -> Iterator[Finding]:
    modes = (frontend.continuous_batching, frontend.sequence_batching, frontend.async_communication)
    if not any(modes):
        yield _error(
            "continuousBatching",
            "no mode is chosen: one turn would block all others, and a gRPC stream that is answered"
            " in one message would kill the worker",
            "set `continuousBatching: true`",
        )
    if frontend.async_communication and (
        frontend.continuous_batching or frontend.sequence_batching
    ):
        yield _error(
            "asyncCommunication",
            "excludes continuousBatching and sequenceBatching",
            "keep one of them; `continuousBatching: true` is the safe choice",
        )
    elif frontend.continuous_batching and frontend.sequence_batching:
        yield _warning(
            "sequenceBatching",
            "together with continuousBatching, TorchServe never revives a worker that died, a gRPC"
            " call other than StreamPredictions2 hangs and leaks a place, and gRPC streams end"
            " after their first part",
            "drop `sequenceBatching`; sessions need only continuousBatching",
        )


def _check_workers(config: Config) -> Iterator[Finding]:
    frontend = config.frontend
    workers = max(frontend.min_workers, frontend.max_workers)
    if workers < 1 or frontend.min_workers < 1:
        yield _error(
            "minWorkers", "nothing would start the engines", "set `minWorkers: 1`, `maxWorkers: 1`"
        )
    if workers > 1:
        reason = {
            Profile.CONTINUOUS: "with continuousBatching, streams stall after their first part",
            Profile.SEQUENCE: "requests of one session would reach workers that do not share it",
            Profile.ASYNC: "requests of one session would reach workers that do not share it",
        }[frontend.profile]
        yield _error(
            "maxWorkers",
            f"{workers} workers: {reason}",
            "set `minWorkers: 1`, `maxWorkers: 1` and, for more devices, `handler.engines: N`",
        )


def _check_batch(frontend: FrontendConfig) -> Iterator[Finding]:
    if frontend.profile is Profile.ASYNC:
        if frontend.batch_size != 1:
            yield _error(
                "batchSize",
                f"{frontend.batch_size} with asyncCommunication: requests hang",
                "set `batchSize: 1`; it does not limit how many turns run side by side",
            )
        return
    if frontend.batch_size == 1:
        yield _warning(
            "batchSize",
            "one request at a time: a second session waits until the first one's turn has ended",
            "set it to the number of requests in flight that you expect, 64 for instance",
        )
    elif frontend.max_batch_delay_ms > 1:
        yield _warning(
            "maxBatchDelay",
            f"TorchServe waits {frontend.max_batch_delay_ms} ms before a first batch, whatever has arrived",
            "set `maxBatchDelay: 1`",
        )


def _check_profile(frontend: FrontendConfig) -> Iterator[Finding]:
    if not frontend.sequence_batching:
        return
    if frontend.max_sessions > frontend.batch_size and frontend.profile is Profile.SEQUENCE:
        yield _error(
            "maxNumSequence",
            f"{frontend.max_sessions} sessions with a batchSize of {frontend.batch_size}: an open"
            " session holds a place in the batch, so requests of the further ones hang",
            "set maxNumSequence to at most batchSize",
        )
    if not frontend.sequence_max_idle_ms:
        yield _error(
            "sequenceMaxIdleMSec",
            "is not set: in this mode nothing but the idle time frees a session's place",
            "set it, 600000 for ten minutes",
        )


def _check_timeouts(config: Config) -> Iterator[Finding]:
    frontend, handler = config.frontend, config.handler
    if frontend.response_timeout_s < _MIN_RESPONSE_TIMEOUT_S:
        yield _error(
            "responseTimeout",
            f"{frontend.response_timeout_s} s: a pause of the machine of that length kills the worker",
            "set `responseTimeout: 120`",
        )
    elif frontend.response_timeout_s < _SMALL_RESPONSE_TIMEOUT_S:
        yield _warning(
            "responseTimeout",
            f"{frontend.response_timeout_s} s is short: TorchServe kills a worker that is late once",
            "set `responseTimeout: 120`",
        )
    if frontend.profile is Profile.SEQUENCE and frontend.response_timeout_s <= (
        handler.restart_deadline_sec
    ):
        yield _error(
            "handler.restartDeadlineSec",
            "a request that waits this long for an engine outlasts responseTimeout, and in this mode"
            " TorchServe never revives the worker that it kills then",
            "set it below responseTimeout",
        )
    if frontend.startup_timeout_s < handler.load_timeout_sec:
        yield _warning(
            "startupTimeout",
            f"{frontend.startup_timeout_s} s is shorter than handler.loadTimeoutSec"
            f" ({handler.load_timeout_sec:g} s): TorchServe would give up while the model still loads",
            "set it above handler.loadTimeoutSec",
        )


def _check_sessions(config: Config) -> Iterator[Finding]:
    frontend, handler = config.frontend, config.handler
    if frontend.lifetime_s < frontend.idle_s:
        yield _warning(
            "sequenceTimeoutMSec",
            "is shorter than sequenceMaxIdleMSec: no session lives long enough to be idle",
            "set it above sequenceMaxIdleMSec",
        )
    for key, value in (
        ("handler.reattachSec", handler.reattach_sec),
        ("handler.engineLingerSec", handler.engine_linger_sec),
    ):
        if value > frontend.idle_s:
            yield _warning(
                key,
                f"{value:g} s is longer than a session may be idle ({frontend.idle_s:g} s)",
                "set it below sequenceMaxIdleMSec",
            )
    if handler.reattach_sec > handler.engine_linger_sec:
        yield _warning(
            "handler.engineLingerSec",
            f"{handler.engine_linger_sec:g} s: an engine whose worker died would end before"
            f" handler.reattachSec ({handler.reattach_sec:g} s), and with it the turns it keeps",
            "set it above handler.reattachSec",
        )


def _check_budgets(handler: HandlerConfig) -> Iterator[Finding]:
    device = handler.device_cache_bytes
    if device is not None and device < 1 << 20:
        yield _warning(
            "handler.deviceCacheBytes",
            f"{device} bytes hold hardly one session: every turn would be computed from its start",
            "give bytes, 2_000_000_000 for instance, or leave it out",
        )
    if device is not None and 0 < handler.host_cache_bytes < device:
        yield _warning(
            "handler.hostCacheBytes",
            "is smaller than handler.deviceCacheBytes: what leaves the device does not fit",
            "make it larger, or 0 to rebuild instead",
        )
    if handler.context_length is not None and handler.context_length < handler.prefill_chunk:
        yield _warning(
            "handler.prefillChunk",
            f"{handler.prefill_chunk} is more than a context holds ({handler.context_length} tokens)",
            "set it below handler.contextLength",
        )


def _check_safety(handler: HandlerConfig) -> Iterator[Finding]:
    if handler.trust_remote_code:
        yield _warning(
            "handler.trustRemoteCode",
            "runs code that comes with the model",
            "leave it out unless you have read that code",
        )
    if "http" in handler.media.allowed_schemes:
        yield _warning(
            "handler.media.allowedSchemes",
            "`http` lets whoever is on the way read and change images",
            "allow https and data only",
        )
    if handler.media.allow_private_addresses:
        yield _warning(
            "handler.media.allowPrivateAddresses",
            "clients can make the server read from this machine and its network, cloud metadata included",
            "leave it out, or name the hosts in allowedHosts",
        )
