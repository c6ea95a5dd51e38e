"""Rules for models with recurrent state: memory of sequences, rows of a pass, raw bodies."""

from __future__ import annotations

from collections.abc import Iterator

from ts_stateful.config.check.finding import Finding, warning
from ts_stateful.config.check.places import sessions_per_engine
from ts_stateful.config.schema import Config, FrontendConfig, StateConfig
from ts_stateful.config.sizes import StatesSize, show_bytes
from ts_stateful.protocol.profile import Profile

__all__ = ["check_states"]

_LONG_IDLE_S = 600
_MANY_PASSES = 8


def check_states(frontend: FrontendConfig, settings: StateConfig) -> Iterator[Finding]:
    """Find what is wrong with a state model, for all sequences that may be open."""
    sequences = sessions_per_engine(Config(frontend=frontend, state=settings))
    yield from _check_bytes(settings, sequences)
    yield from _check_rows(settings, sequences)
    yield from _check_raw(frontend, settings)


def _check_bytes(settings: StateConfig, sequences: int) -> Iterator[Finding]:
    device, host = settings.device_cache_bytes, settings.host_cache_bytes
    size = StatesSize.of(settings.states)
    if device is None or not size.num_bytes:
        return
    slots = device // size.num_bytes
    held = f"{slots:,} slots of {show_bytes(size.num_bytes)} in {show_bytes(device)} ({size.arithmetic})"
    needed = (
        f"set it to at least {sequences * size.num_bytes}, leave it out, or lower maxNumSequence"
    )
    if slots < 1:
        yield warning(
            "handler.deviceCacheBytes",
            f"{held}: not one sequence fits; one slot is allocated anyway, so sequences run one by one",
            needed,
        )
    elif host is not None and slots + host // size.num_bytes < sequences:
        yield warning(
            "handler.hostCacheBytes",
            f"{held}, and {host // size.num_bytes:,} more in host memory: an engine has up to"
            f" {sequences:,} sequences, and further ones get 507 `out_of_memory`",
            f"set it to at least {(sequences - slots) * size.num_bytes}, or leave it out",
        )
    elif slots < sequences:
        yield warning(
            "handler.deviceCacheBytes",
            f"{held} for up to {sequences:,} sequences of an engine: {sequences - slots:,} are moved"
            f" to host memory, and each step of such a sequence first moves {show_bytes(size.num_bytes)} each way",
            needed,
        )
    if 1 <= slots < min(settings.max_rows, sequences):
        yield warning(
            "handler.maxRows",
            f"a pass of {settings.max_rows} sequences needs a slot for each: {held}",
            f"set `maxRows: {slots}`, or deviceCacheBytes to at least"
            f" {min(settings.max_rows, sequences) * size.num_bytes}",
        )


def _check_rows(settings: StateConfig, sequences: int) -> Iterator[Finding]:
    if settings.fixed_rows and settings.max_rows > sequences:
        yield warning(
            "handler.maxRows",
            f"every pass computes {settings.max_rows} rows (fixedRows), of which {settings.max_rows - sequences} are never"
            f" used by {sequences} sequences of an engine",
            f"export the program for {sequences} rows, or raise maxNumSequence",
        )
    passes = -(-sequences // settings.max_rows)
    if passes > _MANY_PASSES:
        yield warning(
            "handler.maxRows",
            f"a step of all {sequences:,} sequences of an engine takes {passes:,} passes of"
            f" {settings.max_rows}, one after the other",
            f"raise it, for instance to {-(-sequences // _MANY_PASSES)}, or use more engines",
        )


def _check_raw(frontend: FrontendConfig, settings: StateConfig) -> Iterator[Finding]:
    takes_raw = any(tensor.raw for tensor in settings.inputs)
    if not takes_raw and any(tensor.raw for tensor in settings.outputs):
        yield warning(
            "handler.outputs",
            "an answer is raw only if the request was, and no input has `raw`: every answer will be JSON",
            "set `raw` for the input that bodies stand for, or remove it from the output",
        )
    if takes_raw and frontend.profile is Profile.SEQUENCE and frontend.idle_s > _LONG_IDLE_S:
        yield warning(
            "sequenceMaxIdleMSec",
            f"in this profile a raw body over HTTP cannot end its sequence: it holds one of {frontend.batch_size} places and"
            f" its states for {frontend.idle_s:g} s after its last step, so no more than"
            f" {int(frontend.max_sessions * 3600 // frontend.idle_s):,} sequences an hour can begin",
            "set it to the longest pause between two steps, for instance 60000, or use `continuousBatching: true`",
        )
