"""The KV states of one session.

Owns the tensors of keys and values of every layer and the memory behind them. Every session has memory of its own and stays
where it is for as long as it is on the device: a batched step reads and writes the states of many sessions in place
(`attention`), so that neither a turn's begin or end nor another session's moves anything. Knows nothing of tokens, sessions
or models.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ts_stateful.language.kv.memory import Memory

__all__ = ["KVCache", "KVLayout", "LayerShape", "Snapshot"]

_HOST = torch.device("cpu")
_GRAIN = 64  # tokens
_FIRST_LAZY = 4096  # tokens of address space that a cache begins with where memory is backed when it is written
_DISCARD = 256  # tokens: cutting back by fewer keeps the pages, which the next turn writes again


class LayerShape(NamedTuple):
    """Of the states of one token in one layer: keys `(heads, key_dim)`, values `(heads, value_dim)`."""

    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class KVLayout:
    """What a model keeps for a token."""

    layers: tuple[LayerShape, ...]
    dtype: torch.dtype

    @cached_property
    def token_elements(self) -> int:
        """Numbers that one token takes in all layers."""
        return sum(shape.heads * (shape.key_dim + shape.value_dim) for shape in self.layers)

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in all layers."""
        return self.token_elements * self.dtype.itemsize


class Snapshot:
    """The first `length` tokens of a cache as they are now, for another thread to copy while the cache is in use.

    The cache cuts it before it changes any of them, so a copy counts if it was still covered when it was complete. `length`
    stays right behind that: what is covered still has the same states, wherever they are by then.
    """

    def __init__(
        self, states: list[Tensor], length: int, arrival: torch.cuda.Event | None = None
    ) -> None:
        self.length = length
        self._states = states
        self._arrival = arrival

    def cut(self, length: int) -> None:
        """Tokens behind `length` are about to change. For the thread of the cache."""
        self.length = min(self.length, length)
        if self.length == 0:
            self.let_go()

    def let_go(self) -> None:
        """Gives the memory back, as the cache is about to do: nothing more can be read. For the thread of the cache."""
        self._states = []

    def read(self, start: int, stop: int) -> list[Tensor] | None:
        """Keys and values of all layers, `(heads, tokens, dim)`, copied to the host; None if they are not there any more.

        Waits for states that are on their way to the host.
        """
        if self._arrival is not None:
            self._arrival.synchronize()
        packed = torch.contiguous_format
        copies = [p[:, start:stop].clone(memory_format=packed).to(_HOST) for p in self._states]
        return copies if copies and stop <= self.length else None


class KVCache:
    """Keys and values of one session, of which the first `length` tokens count.

    `keys[i]` and `values[i]` are `(heads, capacity, dim)`, and lie at `addresses[i]` until there is more room. Whoever runs a
    forward pass calls `reserve`, writes behind `length` and sets `length` when the pass has succeeded. Sliding-window layers
    keep everything as well, so that a session can be cut back to any length.
    """

    device: torch.device
    capacity: int
    token_bytes: int  # that one token takes
    keys: list[Tensor]
    values: list[Tensor]
    addresses: Tensor  # (layers, 2), int64, on the host
    _memory: Memory
    _written: int  # the highest token since memory was given back last
    _arrival: torch.cuda.Event | None  # when all that is on its way from a GPU has come to the host

    def __init__(self, layout: KVLayout, device: torch.device) -> None:
        self._layout = layout
        self.token_bytes = layout.token_bytes
        self.length = 0
        self._snapshot: Snapshot | None = None
        self._replace(0, device)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that are taken: up to the highest token written, or the whole capacity where that is allocated."""
        return (self._written if self._memory.lazy else self.capacity) * self.token_bytes

    def reserve(self, length: int) -> None:
        """Makes room for `length` tokens; those that count stay.

        Raises:
            torch.OutOfMemoryError, MemoryError: there is none. Nothing has changed then; so it is with `move`.
        """
        if length > self.capacity:
            if self._memory.lazy:
                wanted = max(length, 2 * self.capacity, _FIRST_LAZY)
            else:
                wanted = max(length, self.capacity + self.capacity // 16)
            self._replace(_rounded(wanted), self.device)
        self._written = max(self._written, length)

    def truncate(self, length: int) -> None:
        """Forgets every token behind `length`."""
        self.length = min(self.length, length)
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
        """Moves what counts to another device; host memory is pinned where a GPU will read it back.

        Does not wait for a GPU: states on the host may still be on their way. It may read them all back at once, being behind
        them in its own queue; everybody else takes a `snapshot`, which waits.
        """
        pin = device.type == "cpu" and torch.cuda.is_available()
        self._replace(_rounded(self.length), device, pin)

    def clear(self, device: torch.device) -> None:
        """Forgets everything and gives the memory back; what follows is written on `device`."""
        self.length = 0
        self._replace(0, device)

    def snapshot(self) -> Snapshot:
        """What is here now; there is one at a time, an earlier one is worth nothing any more."""
        self._cut_snapshot(0)
        self._snapshot = Snapshot(self.states, self.length, self._arrival)
        return self._snapshot

    def let_go(self) -> None:
        """Nobody needs what is here any more."""
        self._cut_snapshot(0)

    def copy(self, length: int) -> KVCache:
        """A cache of its own with the first `length` tokens, on the same device."""
        assert length <= self.length
        copy = KVCache(self._layout, self.device)
        copy.reserve(length)
        copy.length = length
        _copy(self.states, copy.states, length)
        return copy

    @property
    def states(self) -> list[Tensor]:
        """Keys and values of all layers."""
        return [*self.keys, *self.values]

    def _replace(self, capacity: int, device: torch.device, pin: bool = False) -> None:
        """Goes on in other memory, with what counts. Until all of it is there, this is the cache that it was."""
        layout = self._layout
        memory = Memory(capacity * layout.token_elements, layout.dtype, device, pin)
        keys, values = self._parts(memory.tensor, capacity)
        arrival = None
        if self.length:
            if self._arrival is not None and capacity != self.capacity:
                self._arrival.synchronize()  # a part of what is on the host is gathered there
            _copy(self.states, [*keys, *values], self.length)
            arrival = _end_of_copies(self.device, device)
        if self._snapshot is not None:
            self._snapshot.let_go()  # or it would keep the memory that is replaced
        self.device, self.capacity, self.keys, self.values = device, capacity, keys, values
        self.addresses = torch.tensor(
            [part.data_ptr() for pair in zip(keys, values, strict=True) for part in pair]
        ).view(-1, 2)
        self._memory, self._written, self._arrival = memory, self.length, arrival

    def _cut_snapshot(self, length: int) -> None:
        if self._snapshot is not None:
            self._snapshot.cut(length)

    def _parts(self, memory: Tensor, capacity: int) -> tuple[list[Tensor], list[Tensor]]:
        """The keys and the values of all layers in so much memory."""
        keys: list[Tensor] = []
        values: list[Tensor] = []
        start = 0
        for heads, key_dim, value_dim in self._layout.layers:
            for states, dim in ((keys, key_dim), (values, value_dim)):
                stop = start + heads * capacity * dim
                states.append(memory[start:stop].view(heads, capacity, dim))
                start = stop
        return keys, values


def _copy(sources: list[Tensor], targets: list[Tensor], length: int) -> None:
    """Copies `length` tokens; between devices, as many as the targets have room for."""
    for source, target in zip(sources, targets, strict=True):
        if source.device == target.device:
            target[:, :length].copy_(source[:, :length])
        else:
            # Both in one piece, or torch would gather them in pageable memory first.
            target.copy_(source[:, : target.shape[1]].contiguous(), non_blocking=True)


def _end_of_copies(source: torch.device, target: torch.device) -> torch.cuda.Event | None:
    """Happens when the copies that were begun are done, where nobody waits for them."""
    if source.type != "cuda" or target.type == "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(source))
    return event


def _rounded(length: int) -> int:
    return -(-length // _GRAIN) * _GRAIN
