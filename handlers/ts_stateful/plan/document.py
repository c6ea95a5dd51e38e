"""The planned file, keys after a table of their arithmetic, and warnings about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from ts_stateful.config.check import check_config
from ts_stateful.config.edit import edited
from ts_stateful.config.schema import ConfigError, load_config
from ts_stateful.config.sizes import show_bytes
from ts_stateful.plan.asked import Asked, PlanRefused
from ts_stateful.plan.budget import Budget, Weight, find_budget, needed, weight
from ts_stateful.protocol.profile import Profile

__all__ = ["Plan", "make_plan"]

_MAX_THREADS = 10_000
_LEAST_BATCH, _LEAST_QUEUE = 64, 100
_LEAST_LIFETIME_MS = 3_600_000
_LEAST_LOAD_S = 600
_LOAD_BYTES_PER_S = 200_000_000  # of a disk, which the engines share
_SHARED_BYTES = 256_000_000  # for images and system prompts without a session
START = {"maxSequenceJobQueueSize": 8}  # without a configuration to start from


class Plan(NamedTuple):
    """The text of a `model-config.yaml`, and warnings about it."""

    text: str
    warnings: list[str]


class _Row(NamedTuple):
    """A key with its value, or a name without one (None), and the arithmetic, if there is any."""

    name: str
    value: Any
    shown: str = ""


def make_plan(asked: Asked, kept: Mapping[str, Any], command: str) -> Plan:
    """Make the configuration. `kept` is a configuration whose other keys stay; `command` is written into the file.

    Raises:
        PlanRefused: the request cannot work.
        ConfigError: the kept keys do not work.
    """
    one = weight(asked)
    budget = find_budget(asked, one) if one else None
    frontend, handler = _frontend(asked), _handler(asked, one, budget)
    document = edited(kept or START, model=asked.model_name, profile=asked.profile)
    kept_handler = document.pop("handler", None) or {}
    document |= _keys(frontend) | {"handler": kept_handler | _keys(handler)}
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    findings = check_config(load_config(yaml.safe_load(text)), asked.model)
    if errors := [str(finding) for finding in findings if finding.severity == "error"]:
        raise ConfigError(f"the keys of --config do not work: {'; '.join(errors)}")
    warnings = [f"{finding.key}: {finding.message}; {finding.cure}" for finding in findings]
    table = _comment([_Row("made by", None, command), *frontend, *handler])
    return Plan(table + text, [*_warnings(asked, one, budget), *warnings])


def _frontend(asked: Asked) -> list[_Row]:
    """Plan TorchServe's own keys."""
    turns, places, queue = asked.turns, asked.sessions, max(_LEAST_QUEUE, 2 * asked.sessions)
    batch = max(_LEAST_BATCH, turns + -(-turns // 4))
    shown = f"{turns:,} turns in progress + a quarter, at least {_LEAST_BATCH}"
    if asked.profile is Profile.ASYNC:
        batch, shown = 1, "more would hang in this profile"
    elif asked.profile is Profile.SEQUENCE:
        # Ended sessions keep their places until they have been idle.
        ended = math.ceil(asked.opened_per_min * asked.idle_min)
        places, queue = asked.sessions + ended, _LEAST_QUEUE
        batch, shown = places + 1, f"{asked.sessions:,} open + {ended:,} ended"
        if places > _MAX_THREADS:
            limit = f"need more than {_MAX_THREADS:,} threads of TorchServe"
            raise PlanRefused(f"{shown} sessions {limit}; ask for --profile continuous")
        shown += " sessions + 1"
    idle_ms = math.ceil(asked.idle_min * 60_000)
    return [
        _Row("batchSize", batch, shown),
        _Row("jobQueueSize", queue),
        _Row("maxNumSequence", places),
        _Row("maxBatchDelay", 1),  # ms; TorchServe waits it out before each first batch
        _Row("responseTimeout", 120),
        _Row("startupTimeout", 2 * _load_timeout_s(asked)),
        _Row("sequenceMaxIdleMSec", idle_ms),
        _Row("sequenceTimeoutMSec", max(_LEAST_LIFETIME_MS, idle_ms)),
    ]


def _load_timeout_s(asked: Asked) -> int:
    read_s = asked.engines * asked.split * asked.weights / _LOAD_BYTES_PER_S
    return max(_LEAST_LOAD_S, 60 * math.ceil(read_s / 60 + 2))


def _handler(asked: Asked, one: Weight | None, budget: Budget | None) -> list[_Row]:
    """Plan the keys under `handler:`. Keys of bytes need those of a session and of a device."""
    share, states = f"{asked.share:,}", asked.states
    parts = asked.engines * asked.split
    read = f"{parts} x {show_bytes(asked.weights)} at 200 MB/s + 2 minutes, at least 10 minutes"
    rows = [
        _Row("device", "cuda" if asked.gpus else "cpu"),
        _Row("engines", asked.engines, f"{asked.engines} with {share} sessions each"),
        _Row("loadTimeoutSec", _load_timeout_s(asked), read),
    ]
    if asked.split > 1:
        shown = f"{asked.split} GPUs of an engine; all bytes but hostCacheBytes are those of one"
        rows.insert(2, _Row("tensorParallel", asked.split, shown))
    if states is None:
        rows.append(_Row("dtype", None if asked.dtype == "auto" else asked.dtype))
        rows.append(_Row("contextLength", asked.context))
    elif not states.declared:
        rows.append(_Row("missing", None, "inputs, outputs and states: declare them under handler"))
    if one is not None:
        rows.append(_Row("session", None, one.arithmetic))
    if budget is None:
        return rows
    stay = min(budget.slots, asked.share)
    rows.append(_Row("deviceCacheBytes", budget.device, budget.arithmetic))
    rows.append(_Row("on a device", None, f"{stay:,} of {share} sessions"))
    if states is None:
        rows.append(_Row("sharedCacheBytes", min(_SHARED_BYTES, budget.device // 10)))
    else:
        passes = f"{budget.rows:,} x {-(-asked.share // budget.rows):,} passes"
        rows.append(_Row("maxRows", budget.rows if states.declared else None, passes))
    if asked.gpus and (budget.host or states is None):
        host = budget.host * asked.split
        rows.append(_Row("hostCacheBytes", host, show_bytes(host)))
    return rows


def _keys(rows: Sequence[_Row]) -> dict[str, Any]:
    return {row.name: row.value for row in rows if row.value is not None}


def _comment(rows: Sequence[_Row]) -> str:
    shown = [row for row in rows if row.shown]
    width = max(len(row.name) for row in shown)
    lines = [f"# {row.name:{width}}  {row.shown}" for row in shown]
    # A path in the command may have characters that end a line.
    return "".join("".join(c if c.isprintable() else "?" for c in line) + "\n" for line in lines)


def _warnings(asked: Asked, one: Weight | None, budget: Budget | None) -> Iterator[str]:
    if one is None:
        yield "the size of a session is unknown; give --model, --state-bytes, or --config of a model with states"
        return
    cure = needed(asked, one, asked.share)
    if budget is None:
        yield f"no bytes are planned without {cure.split()[0]}; all sessions stay with {cure}"
    elif budget.resident < asked.sessions:
        if asked.gpus:
            engines = -(-asked.sessions // (budget.device // (one.evicted + one.kept)))
            cure = f"--gpus {engines * asked.split}"
        yield (
            f"not all sessions fit: of {asked.sessions:,}, {budget.resident:,} stay on the device,"
            f" {budget.moved:,} move to host memory and back,"
            f" {budget.rebuilt:,} are computed again when they continue; all stay with {cure}"
        )
    turns = -(-asked.turns // asked.engines)
    if budget and budget.slots < turns and asked.states is None:
        yield (
            f"an engine has room for {budget.slots:,} of its {turns:,} turns in progress, and answers the"
            f" others with 507 `out_of_memory`; ask for --active {budget.slots * asked.engines}"
        )
    if asked.weight_bytes is None and (asked.model is None or asked.model.estimated):
        weights = show_bytes(asked.weights)
        yield f"the weights count as {weights}, an estimate without their files; give --weights"
    if asked.session_image_tokens is None and asked.model and asked.model.image_tokens is None:
        yield "the tokens of an image or clip depend on its size and count as 0; give --image-tokens"
