"""The capacity of a configuration, in numbers."""

from __future__ import annotations

from ts_stateful.config.access import HeaderAuth, JwtAuth
from ts_stateful.config.check.budgets import counted_dtypes
from ts_stateful.config.check.places import sessions_per_engine
from ts_stateful.config.schema import Config, EngineConfig, StateConfig
from ts_stateful.config.sizes import StatesSize, TransformerSize, show_bytes
from ts_stateful.protocol.profile import Profile

__all__ = ["summary"]


def summary(config: Config, model: TransformerSize | None = None) -> list[str]:
    """Return a sentence for each limit."""
    return [
        _sessions(config),
        _principals(config.engine),
        *_requests(config),
        *(_states(config, config.state) if config.state else _tokens(config, model)),
    ]


def _sessions(config: Config) -> str:
    frontend, engines = config.frontend, config.engine.engines
    split = config.handler.tensor_parallel
    per = "device" if split == 1 else f"{split} devices"
    on = f"an engine per {per}" if engines == "auto" else f"{engines} engine{'s'[: engines != 1]}"
    if engines not in ("auto", 1):
        on += f", up to {sessions_per_engine(config):,} each"
    return (
        f"{frontend.max_sessions:,} sessions on {on}; one ends {frontend.idle_s:g} s after its last use, and"
        f" at the latest {frontend.lifetime_s:g} s after its start"
    )


def _principals(settings: EngineConfig) -> str:
    if isinstance(settings.auth, HeaderAuth):
        return f"sessions belong to the principal that a proxy names in {settings.auth.header}"
    if isinstance(settings.auth, JwtAuth):
        claim, issuer = settings.auth.tenant_claim, settings.auth.issuer
        return f"sessions belong to the principal in the claim {claim} of tokens from {issuer}"
    if settings.client_ids == "strong":
        return "no principals: a client that has the id of a session has the session"
    return "no principals: a client that has, or guesses, the id of a session has the session"


def _requests(config: Config) -> list[str]:
    frontend = config.frontend
    waiting = f"{frontend.max_sequence_job_queue_size:,} requests can wait in a session"
    if frontend.profile is Profile.SEQUENCE:
        begin = frontend.max_sessions * 60 / frontend.idle_s
        return [
            f"a session, closed or not, holds one of {frontend.batch_size:,} places until its idle time has passed:"
            f" at most {begin:,.3g} a minute can begin in the long run",
            waiting,
        ]
    if frontend.profile is Profile.ASYNC:
        return [waiting]
    return [
        f"{frontend.batch_size:,} requests in flight and {frontend.job_queue_size:,} that wait for a place;"
        " TorchServe answers all others with 503",
        waiting,
    ]


def _states(config: Config, settings: StateConfig) -> list[str]:
    size, sequences = StatesSize.of(settings.states), sessions_per_engine(config)
    lines = [
        f"{size.arithmetic}; x {sequences:,} sequences of an engine ="
        f" {show_bytes(size.num_bytes * sequences)}"
    ]
    if settings.device_cache_bytes is not None and size.num_bytes:
        slots = min(sequences, settings.device_cache_bytes // size.num_bytes)
        lines.append(f"{slots:,} of them stay on the device, the others move to host memory")
    return lines


def _tokens(config: Config, model: TransformerSize | None) -> list[str]:
    if model is None:
        return []
    part = model.part(config.handler.tensor_parallel)
    return [
        f"{where}: {line}" if where else line
        for where, dtype in counted_dtypes(config.handler).items()
        for line in _tokens_of(config, part, dtype)
    ]


def _tokens_of(config: Config, model: TransformerSize, dtype: str) -> list[str]:
    handler = config.handler
    token_bytes, fixed = model.token_bytes(dtype), model.fixed.num_bytes(dtype)
    lines = [model.arithmetic(dtype)]
    if handler.tensor_parallel > 1:
        lines[0] = f"on each of {handler.tensor_parallel} devices: {lines[0]}"
    window, device = handler.context_length or model.window, handler.device_cache_bytes
    if window is not None:
        lines[0] += (
            f"; a full context of {window:,} tokens takes {show_bytes(window * token_bytes + fixed)}"
        )
    if device is not None and token_bytes:
        sessions = max(1, sessions_per_engine(config))
        tokens = max(0, device - sessions * fixed) // token_bytes
        lines.append(
            f"deviceCacheBytes hold {tokens:,} tokens of an engine's sessions,"
            f" {tokens // sessions:,} of each if all have the same length"
        )
    return lines
