"""Memory of a session and of an engine. An engine's memory is its GPU's, or on a CPU the machine's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ts_stateful.config.sizes import show_bytes
from ts_stateful.plan.asked import Asked, PlanRefused

__all__ = ["Budget", "Weight", "find_budget", "needed", "weight"]

_USED_PERCENT = 80  # of the memory without the weights; activations need the rest
_COPIES = 2  # old and new states of the rows of a pass
_GRAIN = 64  # tokens; KV memory comes in such steps, and on a GPU grows by a sixteenth
_EXACT_TOKENS = 16 * _GRAIN  # with the sixteenth they fill whole steps
_GIB = 1 << 30
_CUDA_BYTES = _GIB  # of a GPU, for CUDA and torch without a model
_SERVER_BYTES = 2 * _GIB  # for TorchServe and its worker
_PROCESS_BYTES = 3 * _GIB  # of host memory, for an engine on a GPU
_LEAST_ROWS, _FEW_PASSES = 256, 8


class Weight(NamedTuple):
    """Bytes of a session: `evicted` (at least 1) can leave the device, `kept` stay. `fixed` of the former are not tokens'."""

    evicted: int
    kept: int
    arithmetic: str
    fixed: int = 0


@dataclass(frozen=True)
class Budget:
    """Bytes for an engine's sessions on each of its devices, its rows in a pass, and the fate of all sessions.

    `slots` sessions fit a device. `resident` of all sessions stay, `moved` go to the host, `rebuilt` are computed again.
    """

    device: int
    arithmetic: str
    rows: int
    slots: int
    host: int
    resident: int
    moved: int
    rebuilt: int


def weight(asked: Asked) -> Weight | None:
    """Compute the bytes of a session; None if they are unknown."""
    if asked.states is not None:
        return Weight(max(1, asked.states.num_bytes), 0, asked.states.arithmetic)
    model, dtype, images = asked.part, asked.counted_dtype, asked.image_tokens
    if model is None:
        return None
    room = -(-asked.tokens * 17 // (16 * _GRAIN)) * _GRAIN if asked.gpus else asked.tokens
    tokens, fixed = room * model.token_bytes(dtype), model.fixed.num_bytes(dtype)
    kept = model.image_bytes(images, dtype)
    shown = f"{model.arithmetic(dtype)}; x {room:,} tokens = {show_bytes(tokens + fixed)}"
    if images:
        shown += f"; + {show_bytes(kept)} for {images:,} image tokens"
    return Weight(max(1, tokens + fixed), kept, shown, fixed)


def needed(asked: Asked, one: Weight, slots: int) -> str:
    """Return the option for memory, with the value with which `slots` sessions of an engine stay on its device."""
    sessions = -(-(slots * one.evicted + asked.share * one.kept) * 100 // _USED_PERCENT)
    # Copies of a quarter of the free memory are a third of the sessions' part, and a part of a row more.
    rows = _rows(asked, one, sessions // 3 + _COPIES * one.evicted)
    memory = sessions + _COPIES * rows * one.evicted + asked.weights + _overhead(asked)
    return f"{'--gpu-memory' if asked.gpus else '--memory'} {-(-memory // _GIB)}GiB"


def find_budget(asked: Asked, one: Weight) -> Budget | None:
    """Divide the memory of an engine; None if it is unknown.

    Raises:
        PlanRefused: not one session fits, or states fit neither device nor host.
    """
    memory = asked.gpu_memory if asked.gpus else asked.memory
    if memory is None:
        return None
    free = max(0, memory - _overhead(asked) - asked.weights)
    rows = _rows(asked, one, free // 4)
    device = max(0, free - _COPIES * rows * one.evicted) * _USED_PERCENT // 100
    shown = f"{show_bytes(memory)} - {show_bytes(asked.weights)} weights"
    shown += f" - {show_bytes(_overhead(asked))} {'CUDA' if asked.gpus else 'TorchServe'}"
    shown += f" - {_COPIES} x {rows} x {show_bytes(one.evicted)} copies" if rows else ""
    shown = f"({shown}) x {_USED_PERCENT} % = {show_bytes(device)}"
    slots = [(device - share * one.kept) // one.evicted for share in asked.shares]
    if slots[-1] < 1:
        raise _nothing_fits(asked, one, device, shown)
    host = _host(asked, one, slots[-1])
    left = [max(0, share - fit) for share, fit in zip(asked.shares, slots, strict=True)]
    moved = sum(min(count, host // one.evicted) for count in left)
    resident = asked.sessions - sum(left)
    return Budget(device, shown, rows, slots[-1], host, resident, moved, sum(left) - moved)


def _overhead(asked: Asked) -> int:
    return _CUDA_BYTES if asked.gpus else _SERVER_BYTES


def _rows(asked: Asked, one: Weight, copies: int) -> int:
    """Choose the rows of a pass: few passes, with at most so many bytes of copies."""
    if asked.states is None or asked.fixed_rows:
        return asked.max_rows or 0
    wanted = asked.max_rows or max(_LEAST_ROWS, -(-asked.share // _FEW_PASSES))
    return max(1, min(wanted, asked.share, copies // (_COPIES * one.evicted)))


def _nothing_fits(asked: Asked, one: Weight, device: int, shown: str) -> PlanRefused:
    images = asked.share * one.kept
    cures = needed(asked, one, 1)
    of_tokens = max(1, one.evicted - one.fixed)
    tokens = (device - images - one.fixed) * asked.tokens // of_tokens
    tokens = tokens // _EXACT_TOKENS * _EXACT_TOKENS
    if asked.model is not None and tokens > asked.image_tokens:
        cures += f", or --tokens {tokens}"
    taken = f"{show_bytes(one.evicted + images)}{' with all images' if images else ''}"
    reason = f"not one session fits: {shown}, but one takes {taken} ({one.arithmetic})"
    return PlanRefused(f"{reason}; ask for {cures}")


def _host(asked: Asked, one: Weight, slots: int) -> int:
    """Choose the host memory for sessions that leave a GPU of the fullest engine."""
    missing = max(0, asked.share - slots) * one.evicted
    num_processes = asked.engines * asked.split
    taken = _SERVER_BYTES + num_processes * _PROCESS_BYTES
    left = max(0, (asked.memory or 0) - taken) // num_processes if asked.gpus else 0
    if asked.states is None:
        # Pinned memory is allocated in powers of two, up to twice the request.
        return min(missing, left // 2)
    if missing > left and asked.memory is not None:
        fit = (slots + left // one.evicted) * asked.engines
        raise PlanRefused(
            f"an engine has {asked.share:,} sessions, and room for {slots:,} on its device and for"
            f" {left // one.evicted:,} in host memory ({one.arithmetic}), and states cannot be computed again;"
            f" ask for at most --sessions {fit}, or a larger --memory"
        )
    return missing
