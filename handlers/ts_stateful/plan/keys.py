"""The planned keys, and the arithmetic of their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from ts_stateful.config.sizes import show_bytes, show_count
from ts_stateful.plan.asked import Asked, PlanRefused
from ts_stateful.plan.budget import Budget, Weight, find_budget, needed, weight, weight_of_tokens
from ts_stateful.protocol.profile import Profile

__all__ = ["PROFILE_KEYS", "Part", "frontend_part", "handler_part"]

PROFILE_KEYS = {
    Profile.CONTINUOUS: "continuousBatching",
    Profile.SEQUENCE: "sequenceBatching",
    Profile.ASYNC: "asyncCommunication",
}
_MAX_THREADS = 10_000
_MAX_IDLE_MIN = 35_000  # TorchServe accepts at most 2**31 - 1 milliseconds
_LEAST_BATCH, _LEAST_QUEUE = 64, 100
_LEAST_LIFETIME_MS = 3_600_000
_LEAST_LOAD_S = 600
_LOAD_BYTES_PER_S = 200_000_000  # of a disk, which the engines share
_SHARED_BYTES = 256_000_000  # for images and system prompts without a session
_UNKNOWN = "the size of a session is unknown; give --model, --state-bytes, or --config of a model with states"


class Part(NamedTuple):
    """A part of the file, rows of (name, arithmetic), and warnings."""

    keys: dict[str, Any]
    table: list[tuple[str, str]]
    warnings: list[str]


def frontend_part(asked: Asked) -> Part:
    """Plan TorchServe's own keys.

    Raises:
        PlanRefused: the profile cannot hold so many sessions.
    """
    if not 1 <= asked.idle_min <= _MAX_IDLE_MIN:
        idle = f"sessions that may be idle for {asked.idle_min:g} minutes"
        raise PlanRefused(f"{idle}; ask for --idle 1 to --idle {_MAX_IDLE_MIN}")
    idle_ms, load_s = round(asked.idle_min * 60_000), _load_timeout_s(asked)
    sessions, turns = asked.sessions, asked.turns
    batch, queue = max(_LEAST_BATCH, turns + -(-turns // 4)), max(_LEAST_QUEUE, 2 * sessions)
    shown = f"{show_count(turns)} turns in progress + a quarter, at least {_LEAST_BATCH}"
    if asked.profile is Profile.ASYNC:
        batch, shown = 1, "more would hang in this profile"
    elif asked.profile is Profile.SEQUENCE:
        sessions, shown = _places(asked)
        batch, queue = sessions + 1, _LEAST_QUEUE
    keys = {
        # More workers would split the requests of a session; `handler.engines` adds devices.
        "minWorkers": 1,
        "maxWorkers": 1,
        PROFILE_KEYS[asked.profile]: True,
        "batchSize": batch,
        "jobQueueSize": queue,
        "maxNumSequence": sessions,
        "maxBatchDelay": 1,  # ms; TorchServe waits it out before each first batch
        "maxSequenceJobQueueSize": asked.waiting,
        "responseTimeout": 120,
        "startupTimeout": 2 * load_s,
        "sequenceMaxIdleMSec": idle_ms,
        "sequenceTimeoutMSec": max(_LEAST_LIFETIME_MS, idle_ms),
    }
    return Part(keys, [("batchSize", shown)], [])


def _places(asked: Asked) -> tuple[int, str]:
    """Count the sessions that keep a place: open ones, and ended ones until they have been idle."""
    rate, idle_min = asked.opened_per_min, asked.idle_min
    ended = math.ceil(rate * idle_min)
    shown = f"{show_count(asked.sessions)} open + {show_count(ended)} ended sessions ({rate:g} a minute x {idle_min:g})"
    if asked.sessions + ended > _MAX_THREADS:
        longest = math.floor((_MAX_THREADS - asked.sessions) / rate) if ended else 0
        shorter = f", or for --idle {longest}" if longest >= 1 else ""
        raise PlanRefused(
            f"{shown} need a thread of TorchServe each, and {show_count(_MAX_THREADS)} are the limit;"
            f" ask for --profile continuous{shorter}"
        )
    return asked.sessions + ended, f"{shown} + 1"


def _load_timeout_s(asked: Asked) -> int:
    read_s = asked.engines * asked.weights / _LOAD_BYTES_PER_S
    return max(_LEAST_LOAD_S, 60 * math.ceil(read_s / 60 + 2))


def handler_part(asked: Asked) -> Part:
    """Plan the keys under `handler:`.

    Raises:
        PlanRefused: not one session fits, or states fit neither device nor host.
    """
    memory = _memory(asked)
    keys = {
        "model": asked.model_name,
        "device": "cuda" if asked.gpus else "cpu",
        "engines": asked.engines,
        "loadTimeoutSec": _load_timeout_s(asked),
    }
    if asked.states is None:
        keys |= {"dtype": asked.dtype, "contextLength": asked.context}
    elif not asked.states.declared:
        memory.table.append(("missing", "inputs, outputs and states: declare them under handler"))
    known = {key: value for key, value in keys.items() if value not in (None, "auto")}
    engines = f"{asked.engines} with {show_count(asked.share)} sessions each"
    read = f"{asked.engines} x {show_bytes(asked.weights)} at 200 MB/s + 2 minutes, at least 10 minutes"
    table = [("engines", engines), ("loadTimeoutSec", read), *memory.table]
    return Part(known | memory.keys, table, [*_advice(asked), *memory.warnings])


def _memory(asked: Asked) -> Part:
    one, memory = weight(asked), asked.gpu_memory if asked.gpus else asked.memory
    if one is None:
        return Part({}, [("session", _UNKNOWN)], [_UNKNOWN])
    all_bytes = f"{show_count(asked.share)} x {show_bytes(one.total)} = {show_bytes(asked.share * one.total)}"
    table = [("session", one.arithmetic), ("sessions", all_bytes)]
    if memory is None:
        option = "--gpu-memory" if asked.gpus else "--memory"
        need = f"all sessions need {show_bytes(needed(asked, one, asked.share))}"
        model = "" if asked.weights else " and the model"
        return Part({}, table, [f"without {option} no bytes are planned; {need}{model}"])
    budget = find_budget(asked, one, memory)
    keys = {"deviceCacheBytes": budget.device}
    if asked.states is None:
        keys["sharedCacheBytes"] = min(_SHARED_BYTES, budget.device // 10)
    elif asked.states.declared:
        keys["maxRows"] = budget.rows
    if asked.gpus and (budget.host or asked.states is None):
        keys["hostCacheBytes"] = budget.host
        table.append(
            ("hostCacheBytes", f"{show_bytes(budget.host)} for sessions that leave the device")
        )
    table += [
        ("deviceCacheBytes", budget.arithmetic),
        ("on a device", f"{show_count(min(budget.slots, asked.share))} sessions"),
        ("result", _fate(asked, budget)),
    ]
    if budget.rows:
        passes = f"{show_count(budget.rows)} x {show_count(-(-asked.share // budget.rows))} passes"
        table.append(("maxRows", f"{passes} for {show_count(asked.share)} sessions"))
    return Part(keys, table, list(_warnings(asked, one, budget)))


def _fate(asked: Asked, budget: Budget) -> str:
    fates = [f"of {show_count(asked.sessions)}, {show_count(budget.resident)} stay on the device"]
    if budget.moved:
        fates.append(f"{show_count(budget.moved)} move to host memory and back")
    if budget.rebuilt:
        fates.append(f"{show_count(budget.rebuilt)} are computed again when they continue")
    return ", ".join(fates)


def _warnings(asked: Asked, one: Weight, budget: Budget) -> Iterator[str]:
    if budget.resident < asked.sessions:
        cures = []
        if asked.model is not None and asked.gpus:
            cures.append(f"--gpus {-(-asked.sessions // (budget.device // one.total))}")
        tokens = asked.model and weight_of_tokens(asked, asked.model, budget.device // asked.share)
        if tokens and tokens > asked.image_tokens:
            cures.append(f"sessions of --tokens {tokens}")
        cure = f"; all stay with {', or '.join(cures)}" if cures else ""
        if asked.states and asked.memory is None:
            cure = f"; that takes {show_bytes(budget.host * asked.engines)} of host memory"
        yield f"not all sessions fit: {_fate(asked, budget)}{cure}"
    turns = -(-asked.turns // asked.engines)
    if budget.slots < turns and asked.states is None:
        yield (
            f"an engine has room for {show_count(budget.slots)} of its {show_count(turns)} turns in progress, and answers the"
            f" others with 507 `out_of_memory`; ask for --active {budget.slots * asked.engines}"
        )


def _advice(asked: Asked) -> Iterator[str]:
    if asked.gpus > asked.sessions:
        idle = f"{asked.gpus - asked.sessions} of {asked.gpus} GPUs have nothing to do"
        yield f"{idle}, because a session uses one; lower --gpus"
    if asked.states is None and asked.profile is Profile.SEQUENCE and asked.sessions > 1:
        yield "in the sequence profile a turn waits for the end of the last batch's turns; prefer --profile continuous"
    if asked.profile is Profile.ASYNC:
        yield "in the async profile one misbehaving client can end the streams of other clients"
    if asked.model is None:
        if not asked.weights and (asked.gpu_memory or asked.memory):
            yield "the model's weights count as 0 bytes; give --weights"
        return
    if asked.model.estimated and asked.weight_bytes is None:
        yield f"{show_bytes(asked.weights)} of weights are an estimate without their files; give --weights"
    if asked.model.image_tokens is None and asked.session_image_tokens is None:
        yield "the tokens of an image depend on its size and count as 0; give --image-tokens"
