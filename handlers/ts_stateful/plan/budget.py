"""Memory of an engine, and how many sessions it holds.

Owns the arithmetic, and the refusal of what cannot work. An engine's memory is its GPU's, or on a CPU the machine's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ts_stateful.config.sizes import show_bytes, show_count
from ts_stateful.plan.asked import Asked, PlanRefused, refuse
from ts_stateful.plan.weight import Weight, weight, weight_of_tokens

__all__ = ["COPIES", "USED_PERCENT", "Budget", "find_budget", "overhead"]

USED_PERCENT = 80  # of what is left beside the weights; activations need the rest
COPIES = 2  # of the states of its rows, which a pass has beside them: old and new

_GIB = 1 << 30
_CONTEXT_BYTES = _GIB  # what CUDA and torch take of a GPU before a model is there
_SERVER_BYTES = 2 * _GIB  # TorchServe and its worker
_PROCESS_BYTES = 3 * _GIB  # of host memory, an engine on a GPU beside what it moves there
_LEAST_ROWS, _FEW_PASSES = 256, 8


@dataclass(frozen=True)
class Budget:
    """Of one engine: bytes of its memory, of copies in a pass of `rows`, for sessions on its device and on the host, and how
    many sessions fit the device. Of all engines: how many stay there, are moved to the host, and are computed again.
    """

    memory: int
    rows: int
    passing: int
    device: int
    slots: int
    host: int
    resident: int
    moved: int
    rebuilt: int


def overhead(asked: Asked) -> int:
    """Bytes of an engine's memory that are neither weights nor sessions."""
    return _CONTEXT_BYTES if asked.gpus else _SERVER_BYTES


def find_budget(asked: Asked, one: Weight, memory: int) -> Budget:
    """What engines with so much memory hold of sessions that take `one`.

    Raises:
        PlanRefused: not one session fits, or sequences that cannot be computed again fit nowhere.
    """
    free = max(0, memory - overhead(asked) - asked.weights)
    rows = _rows(asked, one, free)
    passing = COPIES * rows * one.evicted
    device = max(0, free - passing) * USED_PERCENT // 100
    if device < max(1, one.total + (asked.share - 1) * one.kept):
        raise _nothing_fits(asked, one, memory, device, passing)
    slots = _slots(asked.share, one, device)
    host = _host(asked, one, device, slots)
    left = [max(0, share - _slots(share, one, device)) for share in asked.shares]
    moved = sum(min(count, host // max(1, one.evicted)) for count in left)
    return Budget(
        memory=memory,
        rows=rows,
        passing=passing,
        device=device,
        slots=slots,
        host=host,
        resident=asked.sessions - sum(left),
        moved=moved,
        rebuilt=sum(left) - moved,
    )


def _slots(share: int, one: Weight, device: int) -> int:
    """Sessions that stay on a device beside the images of all of its `share`."""
    return (device - share * one.kept) // max(1, one.evicted)


def _rows(asked: Asked, one: Weight, free: int) -> int:
    """Of a pass of a model with states: enough for few passes, but the copies leave most of what is free to the sequences."""
    if asked.states is None:
        return 0
    if asked.fixed_rows and asked.max_rows:
        return asked.max_rows
    wanted = asked.max_rows or max(_LEAST_ROWS, -(-asked.share // _FEW_PASSES))
    return max(1, min(wanted, asked.share, free // (4 * COPIES * max(1, one.evicted))))


def _nothing_fits(asked: Asked, one: Weight, memory: int, device: int, passing: int) -> PlanRefused:
    kept = (asked.share - 1) * one.kept
    where = "a GPU of --gpu-memory" if asked.gpus else "a machine of --memory"
    rest = overhead(asked) + passing
    need = -(-(one.total + kept) * 100 // USED_PERCENT) + asked.weights + rest
    cures = [f"{where} {-(-need // _GIB)}GiB"]
    if asked.model is not None:
        tokens = weight_of_tokens(asked, asked.model, device - kept)
        if tokens > asked.image_tokens:
            cures.append(f"{'--tokens' if asked.session_tokens else '--context'} {tokens}")
        if _fits(replace(asked, dtype="bfloat16"), memory):
            cures.append("--dtype bfloat16")
    beside = f", beside {show_bytes(kept)} of the others' images" if kept else ""
    return refuse(
        f"not one session fits: {show_bytes(memory)} less {show_bytes(asked.weights)} of weights and {show_bytes(rest)} for"
        f" the rest leave {show_bytes(device)} at {USED_PERCENT} %, and a session takes {show_bytes(one.total)}"
        f" ({one.arithmetic}){beside}",
        f"ask for {', or '.join(cures)}",
    )


def _fits(asked: Asked, memory: int) -> bool:
    one = weight(asked)
    device = max(0, memory - overhead(asked) - asked.weights) * USED_PERCENT // 100
    return one is not None and device >= one.total + (asked.share - 1) * one.kept


def _host(asked: Asked, one: Weight, device: int, slots: int) -> int:
    """Host memory for the sessions that do not stay on the GPU of the engine that has most."""
    missing = max(0, asked.share - slots)
    if not missing:
        return 0
    if asked.states is not None:
        return _host_of_states(asked, one, device, slots)
    # Pinned memory is taken in powers of two, up to twice what is asked for.
    return min(missing * one.evicted, _host_memory(asked) // 2) if asked.gpus else 0


def _host_of_states(asked: Asked, one: Weight, device: int, slots: int) -> int:
    wanted = (asked.share - slots) * one.evicted
    told = f"{show_count(asked.share)} sequences of an engine x {show_bytes(one.evicted)} ({one.arithmetic})"
    if not asked.gpus:
        raise refuse(
            f"{told} are more than the {show_bytes(device)} that the machine has for them, and states cannot be computed again",
            f"ask for at most --sessions {slots}, or a larger --memory",
        )
    left = _host_memory(asked)
    if asked.memory is not None and wanted > left:
        raise refuse(
            f"{told} are more than the {show_bytes(device)} of a GPU and the {show_bytes(left)} of host memory that an engine"
            " has for them, and states cannot be computed again",
            f"ask for at most --sessions {(slots + left // one.evicted) * asked.engines}, or a larger --memory",
        )
    return wanted


def _host_memory(asked: Asked) -> int:
    """An engine's share of what the machine has beside the processes themselves; 0 where nobody has told."""
    taken = _SERVER_BYTES + asked.engines * _PROCESS_BYTES
    return max(0, (asked.memory or 0) - taken) // asked.engines
