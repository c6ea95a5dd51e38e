"""Rules for the number of sessions, engines, and requests in flight and in queues."""

from __future__ import annotations

from collections.abc import Iterator

from ts_stateful.config.check.finding import Finding, error, warning
from ts_stateful.config.schema import Config, FrontendConfig
from ts_stateful.protocol.profile import Profile

__all__ = ["check_places", "sessions_per_engine"]

_MANY_THREADS = 1000


def sessions_per_engine(config: Config) -> int:
    """Return the largest number of sessions on one engine; with `engines: auto`, the number of all."""
    engines = config.engine.engines
    return -(-config.frontend.max_sessions // (1 if engines == "auto" else engines))


def check_places(config: Config) -> Iterator[Finding]:
    """Find numbers of sessions, engines, batch and queues that do not fit together."""
    frontend, engines = config.frontend, config.engine.engines
    sessions = frontend.max_sessions
    if engines != "auto" and engines > sessions:
        yield warning(
            "handler.engines",
            f"{engines} engines for {sessions} sessions: a session has one engine, so {engines - sessions} are not started",
            f"set maxNumSequence to at least {engines}, or `engines: {sessions}`",
        )
    yield from _check_backlog(frontend, config.engine.max_queued_sequences)
    if frontend.profile is Profile.CONTINUOUS and frontend.batch_size > 1:
        yield from _check_queues(frontend)
    if frontend.profile is Profile.SEQUENCE and frontend.batch_size > _MANY_THREADS:
        yield warning(
            "batchSize",
            f"in this mode TorchServe keeps a thread for every open session, up to {frontend.batch_size + 1:,}",
            "use `continuousBatching: true`, where idle sessions need no thread, or lower maxNumSequence and batchSize",
        )


def _check_backlog(frontend: FrontendConfig, num_queued: int) -> Iterator[Finding]:
    if not num_queued:
        return
    if frontend.profile is Profile.SEQUENCE:
        yield error(
            "handler.maxQueuedSequences",
            "in this mode TorchServe passes on no request, `close` included, until all of a batch are answered",
            "leave it out, or use `continuousBatching: true`",
        )
    elif frontend.profile is Profile.CONTINUOUS and num_queued >= frontend.batch_size:
        yield error(
            "handler.maxQueuedSequences",
            f"{num_queued} requests that wait hold all {frontend.batch_size} places in flight (batchSize), so no"
            " session could be closed",
            f"set batchSize far above it, for instance to {4 * num_queued}",
        )


def _check_queues(frontend: FrontendConfig) -> Iterator[Finding]:
    sessions, places = frontend.max_sessions, frontend.batch_size + frontend.job_queue_size
    if places < sessions:
        yield warning(
            "jobQueueSize",
            f"{frontend.batch_size} requests in flight (batchSize) and {frontend.job_queue_size} that wait are {places}:"
            f" when all {sessions} sessions send one at the same time, {sessions - places} get TorchServe's 503",
            f"set it to at least {sessions - frontend.batch_size}; {2 * sessions} leaves room for other requests than prompts",
        )
    if frontend.max_sequence_job_queue_size >= frontend.batch_size:
        yield warning(
            "maxSequenceJobQueueSize",
            f"one session with a turn in progress and {frontend.max_sequence_job_queue_size} waiting holds all"
            f" {frontend.batch_size} places in flight, and all others wait for it",
            f"set it far below batchSize, for instance to {max(1, min(8, frontend.batch_size // 8))}",
        )
