"""The KV states of one session, and their memory."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ts_stateful.language.kv.layout import KVLayout
from ts_stateful.language.kv.memory import Memory
from ts_stateful.language.kv.recurrent import Recurrent

__all__ = ["KVCache", "Snapshot"]

_HOST = torch.device("cpu")
_GRAIN = 64  # tokens
_FIRST_LAZY = 4096  # tokens of address space at first, where memory is backed when it is written
# Bytes of states that lie close together, and are copied when they grow: else each head of a layer has a page of its own.
_SMALL = 1 << 18
_SMALL_GRAIN = 16  # tokens
_DISCARD = 256  # tokens: a smaller cut keeps the pages, which the next turn writes again


class Snapshot:
    """The first `length` tokens of a cache as they are now, for another thread to copy while the cache is in use.

    The cache lowers `length` before it changes any of them. So a copy is valid if `length` still covers it when it is complete.
    Those tokens keep the same states, wherever the cache moves them. `recurrent` has the recurrent states by their numbers of
    tokens; they never change. `num_bytes` are those of all.
    """

    def __init__(self, kv: KVCache, arrival: torch.cuda.Event | None) -> None:
        self.length = kv.length
        self.num_bytes = kv.valid_bytes
        self.recurrent = kv.recurrent.snapshot() if kv.recurrent is not None else {}
        self._blocks = kv.blocks
        self._arrival = arrival

    def cut(self, length: int) -> None:
        """Exclude tokens after `length`, which are about to change. For the cache's thread."""
        self.length = min(self.length, length)
        if self.length == 0:
            self.release()

    def release(self) -> None:
        """Release the memory, as the cache is about to do: nothing more can be read. For the cache's thread."""
        self._blocks = []

    def read(self, start: int, stop: int) -> list[Tensor] | None:
        """Return the states of all layers, `(heads, tokens, dim)`, copied to the host; None if they are no longer valid.

        Waits for states that are still being copied to the host.
        """
        if self._arrival is not None:
            self._arrival.synchronize()
        packed = torch.contiguous_format
        states = itertools.chain(*self._blocks)
        copies = [p[:, start:stop].clone(memory_format=packed).to(_HOST) for p in states]
        return copies if copies and stop <= self.length else None


class KVCache:
    """Keys and values of one session, of which the first `length` tokens are valid.

    `keys(i)` and `values(i)` are `(heads, capacity, dim)`. They stay at `addresses` until the cache grows or moves, so a
    batched step reads and writes many sessions in place. Before a forward pass call `reserve`. Write after `length`, and set
    `length` when the pass succeeded. Sliding-window layers keep all tokens too, so a session can be cut back to any length.
    With recurrent layers it goes back to a length for which `recurrent` has states, the next shorter one. `index(i)` are the
    further keys of a layer with an index, `(1, capacity, dim)`. An idle session keeps no tensor of each layer, only `blocks` of
    them, each `(parts, heads, capacity, dim)`. `images` names the images on which all states depend, where
    layers attend to images beside the text; None if that is unknown.
    """

    device: torch.device
    capacity: int
    token_bytes: int  # of one token
    blocks: list[Tensor]  # all states, see `KVLayout.places`
    addresses: NDArray[np.int64]  # of the first layer's keys, its values, the next one's keys, ...
    _memory: Memory
    _written: int  # the highest token since memory was last released
    _arrival: torch.cuda.Event | None  # when all copies from a GPU have reached the host

    def __init__(self, layout: KVLayout, device: torch.device) -> None:
        self._layout = layout
        self.token_bytes, self.per_prompt = layout.token_bytes, layout.per_prompt
        self.length = 0
        self.images: tuple[str, ...] | None = None
        self.recurrent = Recurrent() if layout.recurrent else None
        self._snapshot: Snapshot | None = None
        self._replace(0, device)

    @property
    def states(self) -> list[Tensor]:
        """The states of all layers, as in `KVLayout.shapes`."""
        return list(itertools.chain(*self.blocks))

    def keys(self, layer: int) -> Tensor:
        """Return the keys of a layer."""
        return self._part(layer)

    def values(self, layer: int) -> Tensor:
        """Return the values of a layer."""
        return self._part(len(self._layout.layers) + layer)

    def index(self, layer: int) -> Tensor:
        """Return the keys of a layer's index."""
        return self._part(2 * len(self._layout.layers) + layer)

    def _part(self, number: int) -> Tensor:
        block, part = self._layout.places[number]
        return self.blocks[block][part]

    @property
    def num_bytes(self) -> int:
        """Bytes of memory in use: up to the highest token written, or the whole capacity where that is allocated."""
        written = self._written if self._memory.lazy else self.capacity
        return written * self.token_bytes + (self.recurrent.num_bytes if self.recurrent else 0)

    @property
    def valid_bytes(self) -> int:
        """Bytes of the states of its tokens."""
        recurrent = self.recurrent.num_bytes if self.recurrent is not None else 0
        return self.length * self.token_bytes + recurrent

    def most_bytes(self, num_tokens: int) -> int:
        """Return the most bytes that it takes with so many tokens."""
        return self._layout.num_bytes(num_tokens)

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens; valid ones stay.

        Raises:
            torch.OutOfMemoryError, MemoryError: there is no room. Then nothing has changed; the same holds for `move`.
        """
        if length > self.capacity:
            self._replace(self._room_for(length), self.device)
        self._written = max(self._written, length)

    def _room_for(self, length: int) -> int:
        """Return the capacity to grow to."""
        if not self._memory.lazy:
            return _rounded(max(length, self.capacity + self.capacity // 16))
        wanted = max(length, 2 * self.capacity)
        if wanted * self.token_bytes <= _SMALL:
            return _rounded(wanted, _SMALL_GRAIN)
        return _rounded(max(wanted, _FIRST_LAZY))

    def truncate(self, length: int) -> None:
        """Forget every token after `length`, and with recurrent layers some before it."""
        self.length = min(self.length, length)
        if self.recurrent is not None:
            self.length = self.recurrent.cut(self.length)
        self._cut_snapshot(self.length)
        if not self._memory.lazy or self._written - self.length < _DISCARD:
            return
        for part in self.states:
            heads, capacity, dim = part.shape
            for head in range(heads):
                start = int(part.storage_offset()) + head * capacity * dim
                self._memory.discard(start + self.length * dim, start + capacity * dim)
        self._written = self.length

    def move(self, device: torch.device) -> None:
        """Move the valid tokens to another device; host memory is pinned where a GPU will read it back.

        Does not wait for a GPU: states may still be arriving on the host. That GPU may read them back at once, because its
        queue keeps the order. All other readers take a `snapshot`, which waits.
        """
        pin = device.type == "cpu" and torch.cuda.is_available()
        recurrent = self.recurrent.on(device) if self.recurrent is not None else None
        self._replace(_rounded(self.length), device, pin)
        self.recurrent = recurrent

    def clear(self, device: torch.device) -> None:
        """Forget everything and release the memory; later tokens are written on `device`."""
        self.length = 0
        if self.recurrent is not None:
            self.recurrent = Recurrent()
        self._replace(0, device)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the present states; there is one at a time, so an earlier one becomes invalid."""
        self._cut_snapshot(0)
        self._snapshot = Snapshot(self, self._arrival)
        return self._snapshot

    def release_snapshot(self) -> None:
        """Invalidate the present snapshot."""
        self._cut_snapshot(0)

    def copy(self, length: int) -> KVCache:
        """Return an independent cache of the first `length` tokens, on the same device; of fewer as in `truncate`."""
        assert length <= self.length
        copy = self._empty()
        copy.images = self.images
        if self.recurrent is not None:
            copy.recurrent = self.recurrent.copy(length)
            length = copy.recurrent.length
        copy.reserve(length)
        copy.length = length
        _copy(self.blocks, copy.blocks, length)
        return copy

    def _empty(self) -> KVCache:
        """Return an empty cache of the same kind; that of a split model has another one."""
        return KVCache(self._layout, self.device)

    def _replace(self, capacity: int, device: torch.device, pin: bool = False) -> None:
        """Continue in other memory, with the valid tokens. Nothing changes until all of it is allocated."""
        layout = self._layout
        memory = Memory(capacity * layout.token_elements, layout.dtype, device, pin)
        blocks = self._split(memory.tensor, capacity)
        arrival = None
        if self.length:
            if self._arrival is not None and capacity != self.capacity:
                self._arrival.synchronize()  # the CPU gathers a part of the states
            _copy(self.blocks, blocks, self.length)
            arrival = _end_of_copies(self.device, device)
        if self._snapshot is not None:
            self._snapshot.release()  # or it would keep the old memory
        self.device, self.capacity = device, capacity
        self.blocks = blocks
        self.addresses = memory.tensor.data_ptr() + capacity * layout.starts
        self._memory, self._written, self._arrival = memory, self.length, arrival

    def _cut_snapshot(self, length: int) -> None:
        if self._snapshot is not None:
            self._snapshot.cut(length)

    def _split(self, memory: Tensor, capacity: int) -> list[Tensor]:
        """Return the states as views of `memory`: neighbors of one shape together, `(parts, heads, capacity, dim)`."""
        blocks, start = [], 0
        for (heads, dim), group in itertools.groupby(self._layout.shapes):
            count = len(list(group))
            stop = start + count * heads * capacity * dim
            blocks.append(memory[start:stop].view(count, heads, capacity, dim))
            start = stop
        return blocks


def _copy(sources: list[Tensor], targets: list[Tensor], length: int) -> None:
    """Copy `length` tokens of blocks; between devices, as many as the targets have room for."""
    for source, target in zip(sources, targets, strict=True):
        if source.device == target.device:  # at once: each part would be a launch of its own
            target[:, :, :length].copy_(source[:, :, :length])
            continue
        for part, place in zip(source, target, strict=True):
            # Both contiguous, or torch would gather them in pageable memory first.
            place.copy_(part[:, : place.shape[1]].contiguous(), non_blocking=True)


def _end_of_copies(source: torch.device, target: torch.device) -> torch.cuda.Event | None:
    """Return an event that marks the end of copies for which nothing waits, or None."""
    if source.type != "cuda" or target.type == "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(source))
    return event


def _rounded(length: int, grain: int = _GRAIN) -> int:
    return -(-length // grain) * grain
