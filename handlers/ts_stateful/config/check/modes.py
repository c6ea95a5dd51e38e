"""Rules for TorchServe's ways of batching: their combinations, workers and required keys.

They follow from TorchServe 0.12.0, its last release.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import asdict, fields

from ts_stateful.config.check.finding import Finding, error, warning
from ts_stateful.config.schema import FrontendConfig
from ts_stateful.protocol.profile import Profile

__all__ = ["check_modes"]

_MAX_INT = 2**31 - 1  # TorchServe ignores keys with larger values


def check_modes(frontend: FrontendConfig) -> Iterator[Finding]:
    """Find what is wrong with the profile, the workers and the batch."""
    yield from _check_mode(frontend)
    yield from _check_workers(frontend)
    yield from _check_batch(frontend)
    yield from _check_sequence(frontend)
    yield from _check_integers(frontend)


def _check_mode(frontend: FrontendConfig) -> Iterator[Finding]:
    modes = (frontend.continuous_batching, frontend.sequence_batching, frontend.async_communication)
    if not any(modes):
        yield error(
            "continuousBatching",
            "no mode is set: one turn would block all others, and a gRPC stream with a one-message"
            " answer would kill the worker",
            "set `continuousBatching: true`",
        )
    if frontend.async_communication and (
        frontend.continuous_batching or frontend.sequence_batching
    ):
        yield error(
            "asyncCommunication",
            "excludes continuousBatching and sequenceBatching",
            "keep one of them; `continuousBatching: true` is the safe choice",
        )
    elif frontend.continuous_batching and frontend.sequence_batching:
        yield warning(
            "sequenceBatching",
            "with continuousBatching too, TorchServe never restarts a dead worker, gRPC calls other"
            " than StreamPredictions2 hang and leak a place, and gRPC streams end after their first part",
            "remove `sequenceBatching`; sessions need only continuousBatching",
        )


def _check_workers(frontend: FrontendConfig) -> Iterator[Finding]:
    workers = max(frontend.min_workers, frontend.max_workers)
    if workers < 1 or frontend.min_workers < 1:
        yield error(
            "minWorkers",
            "no worker would start the engines",
            "set `minWorkers: 1`, `maxWorkers: 1`",
        )
    if workers > 1:
        reason = {
            Profile.CONTINUOUS: "with continuousBatching, streams stall after their first part",
            Profile.SEQUENCE: "requests of one session would reach workers that do not share it",
            Profile.ASYNC: "requests of one session would reach workers that do not share it",
        }[frontend.profile]
        yield error(
            "maxWorkers",
            f"{workers} workers: {reason}",
            "set `minWorkers: 1`, `maxWorkers: 1` and, for more devices, `handler.engines: N`",
        )


def _check_batch(frontend: FrontendConfig) -> Iterator[Finding]:
    if frontend.profile is Profile.ASYNC:
        if frontend.batch_size != 1:
            yield error(
                "batchSize",
                f"{frontend.batch_size} with asyncCommunication: requests would hang",
                "set `batchSize: 1`; it does not limit the number of concurrent turns",
            )
        return
    if frontend.batch_size == 1:
        yield warning(
            "batchSize",
            "one request at a time: a second session waits for the end of the first one's turn",
            "set it to the expected number of requests in flight, for instance 64",
        )
    elif frontend.max_batch_delay_ms > 1:
        yield warning(
            "maxBatchDelay",
            f"TorchServe waits {frontend.max_batch_delay_ms} ms before a first batch, even if requests have arrived",
            "set `maxBatchDelay: 1`",
        )


def _check_sequence(frontend: FrontendConfig) -> Iterator[Finding]:
    if not frontend.sequence_batching:
        return
    if frontend.max_sessions > frontend.batch_size and frontend.profile is Profile.SEQUENCE:
        yield error(
            "maxNumSequence",
            f"{frontend.max_sessions} sessions with a batchSize of {frontend.batch_size}: an open"
            " session holds a place in the batch, so requests of further sessions would hang",
            f"set `batchSize: {frontend.max_sessions + 1}`, or maxNumSequence below batchSize",
        )
    if not frontend.max_num_sequence and frontend.batch_size > 1:
        yield error(
            "maxNumSequence",
            "is not set: TorchServe would take one session, and answer all others with 503",
            f"set it, for instance to {frontend.batch_size - 1}",
        )
    elif frontend.max_num_sequence == frontend.batch_size and frontend.profile is Profile.SEQUENCE:
        yield warning(
            "batchSize",
            f"{frontend.batch_size} sessions leave no free place: while all are open, idle or not, TorchServe queues a task"
            f" every {max(1, frontend.max_batch_delay_ms)} ms without a thread to run it, which fills its memory (0.3 GB"
            " an hour at 1 ms)",
            f"set `batchSize: {frontend.batch_size + 1}`",
        )
    if not frontend.sequence_max_idle_ms:
        yield error(
            "sequenceMaxIdleMSec",
            "is not set: in this mode only the idle time frees a session's place",
            "set it, for instance to 600000 (ten minutes)",
        )


def _check_integers(frontend: FrontendConfig) -> Iterator[Finding]:
    values = asdict(frontend)
    for field in fields(frontend):
        value = values[field.name]
        if value > _MAX_INT:
            yield error(
                field.encode_name,
                f"{value} is more than {_MAX_INT}: TorchServe would ignore the key",
                f"set it to at most {_MAX_INT}",
            )
