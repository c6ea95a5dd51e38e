"""Memory of a session and of an engine. An engine's memory is its GPU's, or on a CPU the machine's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ts_stateful.config.sizes import TransformerSize, show_bytes, show_count
from ts_stateful.plan.asked import Asked, PlanRefused

__all__ = ["Budget", "Weight", "find_budget", "needed", "weight", "weight_of_tokens"]

_USED_PERCENT = 80  # of the memory without the weights; activations need the rest
_COPIES = 2  # old and new states of the rows of a pass
_GRAIN = 64  # tokens; KV memory comes in such steps, and on a GPU grows by a sixteenth
_GIB = 1 << 30
_CUDA_BYTES = _GIB  # of a GPU, for CUDA and torch without a model
_SERVER_BYTES = 2 * _GIB  # for TorchServe and its worker
_PROCESS_BYTES = 3 * _GIB  # of host memory, for an engine on a GPU
_LEAST_ROWS, _FEW_PASSES = 256, 8


class Weight(NamedTuple):
    """Bytes of a session: `evicted` can leave the device, `kept` stay."""

    evicted: int
    kept: int
    arithmetic: str

    @property
    def total(self) -> int:
        """Return the bytes of a session on the device."""
        return self.evicted + self.kept


@dataclass(frozen=True)
class Budget:
    """Bytes for an engine's sessions, its rows in a pass, and the fate of all sessions.

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
        return Weight(asked.states.num_bytes, 0, asked.states.arithmetic)
    model, dtype, images = asked.model, asked.counted_dtype, asked.image_tokens
    if model is None:
        return None
    room = -(-asked.tokens * 17 // (16 * _GRAIN)) * _GRAIN if asked.gpus else asked.tokens
    evicted, kept = room * model.token_bytes(dtype), model.image_bytes(images, dtype)
    spare = f" ({show_count(asked.tokens)} + spare)" if asked.gpus else ""
    shown = f"{model.arithmetic(dtype)}; x {show_count(room)} tokens{spare} = {show_bytes(evicted)}"
    if images:
        shown += f"; + {show_bytes(kept)} for {show_count(images)} image tokens"
    return Weight(evicted, kept, shown)


def weight_of_tokens(asked: Asked, model: TransformerSize, num_bytes: int) -> int:
    """Compute the longest session, in tokens, that fits `num_bytes` with its images; 0 if none does."""
    left = num_bytes - model.image_bytes(asked.image_tokens, asked.counted_dtype)
    room = max(0, left) // model.token_bytes(asked.counted_dtype) // _GRAIN * _GRAIN
    return room * 16 // 17 if asked.gpus else room


def needed(asked: Asked, one: Weight, slots: int) -> int:
    """Compute the memory of an engine for `slots` sessions, beside the images of all its sessions."""
    sessions = slots * one.evicted + asked.share * one.kept
    return -(-sessions * 100 // _USED_PERCENT) + asked.weights + _overhead(asked)


def find_budget(asked: Asked, one: Weight, memory: int) -> Budget:
    """Divide the memory of an engine.

    Raises:
        PlanRefused: not one session fits, or states fit neither device nor host.
    """
    free = max(0, memory - _overhead(asked) - asked.weights)
    rows = _rows(asked, one, free)
    copies = _COPIES * rows * one.evicted
    device = max(0, free - copies) * _USED_PERCENT // 100
    shown = f"{show_bytes(memory)} - {show_bytes(asked.weights)} weights - {show_bytes(_overhead(asked))}"
    shown += f" {'CUDA' if asked.gpus else 'TorchServe'}"
    shown += f" - {_COPIES} x {rows} x {show_bytes(one.evicted)} copies" if rows else ""
    shown = f"({shown}) x {_USED_PERCENT} % = {show_bytes(device)}"
    if device < max(1, one.evicted + asked.share * one.kept):
        raise _nothing_fits(asked, one, device, shown, needed(asked, one, 1) + copies, memory)
    slots = _slots(asked.share, one, device)
    host = _host(asked, one, device, slots)
    left = [max(0, share - _slots(share, one, device)) for share in asked.shares]
    moved = sum(min(count, host // max(1, one.evicted)) for count in left)
    resident = asked.sessions - sum(left)
    return Budget(device, shown, rows, slots, host, resident, moved, sum(left) - moved)


def _overhead(asked: Asked) -> int:
    return _CUDA_BYTES if asked.gpus else _SERVER_BYTES


def _slots(share: int, one: Weight, device: int) -> int:
    """Count the sessions that fit a device beside the images of all `share` sessions."""
    return (device - share * one.kept) // max(1, one.evicted)


def _rows(asked: Asked, one: Weight, free: int) -> int:
    """Choose the rows of a pass: few passes, while copies take at most a quarter of the free memory."""
    if asked.states is None:
        return 0
    if asked.fixed_rows and asked.max_rows:
        return asked.max_rows
    wanted = asked.max_rows or max(_LEAST_ROWS, -(-asked.share // _FEW_PASSES))
    return max(1, min(wanted, asked.share, free // (4 * _COPIES * max(1, one.evicted))))


def _nothing_fits(
    asked: Asked, one: Weight, device: int, shown: str, need: int, memory: int
) -> PlanRefused:
    where = "a GPU of --gpu-memory" if asked.gpus else "a machine of --memory"
    cures = [f"{where} {-(-need // _GIB)}GiB"]
    if asked.model is not None:
        tokens = weight_of_tokens(asked, asked.model, device - (asked.share - 1) * one.kept)
        if tokens > asked.image_tokens:
            cures.append(f"{'--tokens' if asked.session_tokens else '--context'} {tokens}")
        half = replace(asked, dtype="bfloat16")
        if (other := weight(half)) and needed(half, other, 1) <= memory:
            cures.append("--dtype bfloat16")
    images = f" beside {show_bytes(asked.share * one.kept)} of all images" if one.kept else ""
    reason = f"not one session fits: {shown}, but one takes {show_bytes(one.evicted)}{images} ({one.arithmetic})"
    return PlanRefused(f"{reason}; ask for {', or '.join(cures)}")


def _host(asked: Asked, one: Weight, device: int, slots: int) -> int:
    """Choose the host memory for sessions that leave the GPU of the fullest engine."""
    missing = max(0, asked.share - slots) * one.evicted
    taken = _SERVER_BYTES + asked.engines * _PROCESS_BYTES
    left = max(0, (asked.memory or 0) - taken) // asked.engines
    if asked.states is None:
        # Pinned memory is allocated in powers of two, up to twice the request.
        return min(missing, left // 2) if asked.gpus else 0
    if missing and (not asked.gpus or (asked.memory is not None and missing > left)):
        fit = (slots + left // one.evicted) * asked.engines if asked.gpus else slots
        host = f" and {show_bytes(left)} of host memory" if asked.gpus else ""
        raise PlanRefused(
            f"{show_count(asked.share)} x {show_bytes(one.evicted)} ({one.arithmetic}) exceed the {show_bytes(device)} of an"
            f" engine{host}, and states cannot be computed again; ask for at most --sessions {fit}, or a larger --memory"
        )
    return missing
