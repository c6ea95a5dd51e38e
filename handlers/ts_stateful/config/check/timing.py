"""Rules for times: TorchServe's timeouts, and the lives of sessions, turns and engines."""

from __future__ import annotations

from collections.abc import Iterator

from ts_stateful.config.check.finding import Finding, error, warning
from ts_stateful.config.schema import Config
from ts_stateful.protocol.profile import Profile

__all__ = ["check_timing"]

_MIN_RESPONSE_TIMEOUT_S = 10
_SMALL_RESPONSE_TIMEOUT_S = 60


def check_timing(config: Config) -> Iterator[Finding]:
    """Find what is wrong with timeouts and expiry."""
    yield from _check_timeouts(config)
    yield from _check_expiry(config)


def _check_timeouts(config: Config) -> Iterator[Finding]:
    frontend, engine = config.frontend, config.engine
    if frontend.response_timeout_s < _MIN_RESPONSE_TIMEOUT_S:
        yield error(
            "responseTimeout",
            f"{frontend.response_timeout_s} s: TorchServe kills the worker if the machine pauses that long",
            "set `responseTimeout: 120`",
        )
    elif frontend.response_timeout_s < _SMALL_RESPONSE_TIMEOUT_S:
        yield warning(
            "responseTimeout",
            f"{frontend.response_timeout_s} s is short: TorchServe kills a worker after one late answer",
            "set `responseTimeout: 120`",
        )
    # A request waits until a draining engine has exited and the next one has started.
    waits_s = engine.drain_sec + engine.restart_deadline_sec
    if frontend.profile is Profile.SEQUENCE and frontend.response_timeout_s <= waits_s:
        yield error(
            "handler.restartDeadlineSec",
            f"a request may wait {waits_s:g} s (with drainSec) for an engine, longer than responseTimeout"
            f" ({frontend.response_timeout_s} s): TorchServe then kills the worker, and in this mode never restarts it",
            "set their sum below responseTimeout",
        )
    if frontend.startup_timeout_s < engine.load_timeout_sec:
        yield warning(
            "startupTimeout",
            f"{frontend.startup_timeout_s} s is shorter than handler.loadTimeoutSec"
            f" ({engine.load_timeout_sec:g} s): TorchServe would give up while the model still loads",
            "set it above handler.loadTimeoutSec",
        )


def _check_expiry(config: Config) -> Iterator[Finding]:
    frontend, engine = config.frontend, config.engine
    if frontend.lifetime_s < frontend.idle_s:
        yield warning(
            "sequenceTimeoutMSec",
            f"{frontend.lifetime_s:g} s is shorter than sequenceMaxIdleMSec ({frontend.idle_s:g} s):"
            " a session ends before its idle time has passed",
            "set it above sequenceMaxIdleMSec",
        )
    lasting = [("handler.engineLingerSec", engine.engine_linger_sec)]
    if config.state is None:
        lasting.insert(0, ("handler.reattachSec", config.handler.reattach_sec))
    for key, value in lasting:
        if value > frontend.idle_s:
            yield warning(
                key,
                f"{value:g} s is longer than a session may be idle ({frontend.idle_s:g} s)",
                "set it below sequenceMaxIdleMSec",
            )
    if config.state is None and config.handler.reattach_sec > engine.engine_linger_sec:
        yield warning(
            "handler.engineLingerSec",
            f"{engine.engine_linger_sec:g} s: an engine whose worker died would exit, with its turns, before"
            f" handler.reattachSec ({config.handler.reattach_sec:g} s)",
            "set it above handler.reattachSec",
        )
