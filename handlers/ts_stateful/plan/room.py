"""What `handler:` says about memory, and why.

Owns the sentences; the numbers are `budget`'s.
"""

from __future__ import annotations

from typing import NamedTuple

from ts_stateful.config.sizes import TransformerSize, show_bytes, show_count
from ts_stateful.plan.asked import Asked
from ts_stateful.plan.budget import COPIES, USED_PERCENT, Budget, find_budget, overhead
from ts_stateful.plan.setting import Setting
from ts_stateful.plan.weight import Weight, weight, weight_of_tokens

__all__ = ["Room", "find_room"]

_SHARED_BYTES = 256_000_000
_UNKNOWN = "what a session takes is not known: --model tells it, or --config of a model with states, or --state-bytes"
_SHARED = "Of these, images and system prompts that no session uses any more but the next one might; they go first."


class Room(NamedTuple):
    """The settings, a sentence on the whole, and what the hardware does not hold."""

    settings: list[Setting]
    summary: str
    warnings: list[str]


def find_room(asked: Asked) -> Room:
    """The budgets for what is asked.

    Raises:
        PlanRefused: not one session fits, or sequences that cannot be computed again fit nowhere.
    """
    one = weight(asked)
    memory = asked.gpu_memory if asked.gpus else asked.memory
    if one is None:
        reason = f"Bytes of an engine's device for sessions; {_UNKNOWN}."
        return Room([Setting("deviceCacheBytes", None, reason)], _UNKNOWN.capitalize(), [_UNKNOWN])
    if memory is None:
        return _unbounded(asked, one)
    budget = find_budget(asked, one, memory)
    summary = (
        f"{one.arithmetic}. Of {show_count(asked.sessions)} sessions {_fate(asked, one, budget)}"
    )
    warnings = [*_not_resident(asked, one, budget), *_not_at_once(asked, one, budget)]
    return Room(_settings(asked, one, budget), summary, warnings)


def _unbounded(asked: Asked, one: Weight) -> Room:
    need = one.total * asked.share
    whole = -(-need * 100 // USED_PERCENT) + asked.weights + overhead(asked)
    where, option = ("GPU", "--gpu-memory") if asked.gpus else ("machine", "--memory")
    bound = f"{USED_PERCENT} % of what the model leaves free" if asked.gpus else "no bound"
    told = f"{show_count(asked.share)} sessions of an engine x {show_bytes(one.total)} = {show_bytes(need)}"
    return Room(
        [
            Setting(
                "deviceCacheBytes",
                None,
                f"Bytes of an engine's device for sessions: {bound}. {told}.",
            )
        ],
        f"{one.arithmetic}; {told}",
        [
            f"without {option} nothing was compared: to hold all sessions a {where} needs {show_bytes(whole)}"
            + ("" if asked.weights else " beside the model")
        ],
    )


def _settings(asked: Asked, one: Weight, budget: Budget) -> list[Setting]:
    settings = [Setting("deviceCacheBytes", budget.device, _device(asked, one, budget))]
    if asked.states is not None:
        rows = budget.rows if asked.states.declared else None
        settings.append(Setting("maxRows", rows, _rows(asked, one, budget)))
    else:
        shared = min(_SHARED_BYTES, budget.device // 10)
        settings.append(Setting("sharedCacheBytes", shared, _SHARED))
    if asked.gpus:
        host = None if asked.states and not budget.host else budget.host
        settings.append(Setting("hostCacheBytes", host, _host(asked, one, budget)))
    return settings


def _device(asked: Asked, one: Weight, budget: Budget) -> str:
    taken = [
        f"{show_bytes(asked.weights)} of weights",
        f"{show_bytes(overhead(asked))} for {'CUDA' if asked.gpus else 'TorchServe'}",
    ]
    if budget.passing:
        taken.append(f"{show_bytes(budget.passing)} for the copies of a pass")
    images = (
        f", {show_bytes(asked.share * one.kept)} of it embeddings of images" if one.kept else ""
    )
    return (
        f"Bytes of an engine's device for sessions: {USED_PERCENT} % of {show_bytes(budget.memory)} less"
        f" {' and '.join(taken)}. All {show_count(asked.share)} sessions of an engine take"
        f" {show_bytes(asked.share * one.total)}{images}: {show_count(min(budget.slots, asked.share))} of them stay."
    )


def _rows(asked: Asked, one: Weight, budget: Budget) -> str:
    passes = show_count(-(-asked.share // budget.rows))
    return (
        f"Sequences in a forward pass: {show_count(budget.rows)} x {COPIES} copies x {show_bytes(one.evicted)} ="
        f" {show_bytes(budget.passing)}, and {passes} passes if all {show_count(asked.share)} of an engine have a step."
    )


def _host(asked: Asked, one: Weight, budget: Budget) -> str:
    missing = max(0, asked.share - budget.slots)
    told = "Bytes of host memory for what leaves an engine's device"
    if not missing:
        return f"{told}: nothing has to."
    if not budget.host:
        return f"{told}: {show_count(missing)} sessions are computed again instead; --memory has some moved."
    slots = min(missing, budget.host // max(1, one.evicted))
    return f"{told}: {show_count(slots)} of its other {show_count(missing)} sessions x {show_bytes(one.evicted)}."


def _fate(asked: Asked, one: Weight, budget: Budget) -> str:
    parts = [f"{show_count(budget.resident)} stay on the device"]
    if budget.moved:
        parts.append(
            f"{show_count(budget.moved)} move to host memory and back ({show_bytes(one.evicted)} each)"
        )
    if budget.rebuilt:
        parts.append(
            f"{show_count(budget.rebuilt)} are computed again when they go on ({show_count(asked.tokens)} tokens each)"
        )
    return ", ".join(parts)


def _not_resident(asked: Asked, one: Weight, budget: Budget) -> list[str]:
    if budget.resident == asked.sessions:
        return []
    told = f"not all sessions fit: of {show_count(asked.sessions)}, {_fate(asked, one, budget)}"
    cures = _cures(asked, one, budget, asked.model) if asked.model else []
    told += f"; all would stay with {', or '.join(cures)}" if cures else ""
    if asked.states and asked.memory is None:
        told += f"; that takes {show_bytes(budget.host * asked.engines)} of host memory"
    return [told]


def _cures(asked: Asked, one: Weight, budget: Budget, model: TransformerSize) -> list[str]:
    cures = []
    per_gpu = budget.device // one.total
    if asked.gpus and per_gpu:
        cures.append(f"--gpus {-(-asked.sessions // per_gpu)}")
    tokens = weight_of_tokens(asked, model, budget.device // asked.share)
    if tokens > asked.image_tokens:
        cures.append(f"sessions of --tokens {tokens}")
    return cures


def _not_at_once(asked: Asked, one: Weight, budget: Budget) -> list[str]:
    turns = -(-asked.turns // asked.engines)
    if budget.slots >= turns or asked.states is not None:
        return []
    return [
        f"{show_count(asked.turns)} turns in progress at once do not fit: an engine has room for {show_count(budget.slots)} of"
        f" its {show_count(turns)}, further ones are answered with 507 `out_of_memory`; for that, ask for --active"
        f" {budget.slots * asked.engines}"
    ]
