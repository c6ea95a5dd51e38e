"""The KV states of one session, as a cache that stock `transformers` models read and write.

Owns the tensors of keys and values and their storage. Knows nothing of tokens or sessions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

__all__ = ["KVCache"]

_GRAIN = 64  # tokens
_GROWTH = 1.25


class _KVLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not typed
    """Keys and values of one layer, `(1, kv_heads, capacity, head_dim)`, of which the first `length` positions count.

    Sliding-window layers keep everything as well: the model's own mask hides what is outside the window, so that a session
    can be cut back to any length.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = key_states[:, :, :0]
        self.values = value_states[:, :, :0]
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.keys.shape[-2]:
            capacity = -(-int(end * _GROWTH) // _GRAIN) * _GRAIN
            self.keys = self._resized(self.keys, capacity)
            self.values = self._resized(self.values, capacity)
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def truncate(self, length: int) -> None:
        """Forgets every position behind `length`; the storage stays."""
        self.length = min(self.length, length)

    def move(self, device: torch.device, pin: bool) -> None:
        """Moves what counts to another device, without spare capacity."""
        if self.is_initialized:
            self.keys = _moved(self.keys[:, :, : self.length], device, pin)
            self.values = _moved(self.values[:, :, : self.length], device, pin)

    @property
    def num_bytes(self) -> int:
        """Bytes of storage, spare capacity included."""
        return int(self.keys.nbytes + self.values.nbytes) if self.is_initialized else 0

    @property
    def token_bytes(self) -> int:
        """Bytes of one position."""
        capacity = self.keys.shape[-2] if self.is_initialized else 0
        return self.num_bytes // capacity if capacity else 0

    def _resized(self, states: Tensor, capacity: int) -> Tensor:
        batch, heads, _, dim = states.shape
        resized = states.new_empty((batch, heads, capacity, dim))
        resized[:, :, : self.length] = states[:, :, : self.length]
        return resized


def _moved(states: Tensor, device: torch.device, pin: bool) -> Tensor:
    copy = torch.empty_like(
        states, device=device, pin_memory=pin, memory_format=torch.contiguous_format
    )
    return copy.copy_(states)


class KVCache(Cache):  # type: ignore[misc]
    """The KV states of one session; layers appear as the model writes them."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=_KVLayer)

    @property
    def length(self) -> int:
        """The number of tokens whose states are held."""
        return int(self.layers[0].length) if self.layers else 0

    def truncate(self, length: int) -> None:
        """Forgets the states of every token behind the first `length`."""
        for layer in self.layers:
            layer.truncate(length)

    def move(self, device: torch.device) -> None:
        """Moves the states; host memory is pinned where a GPU will read it back."""
        pin = device.type == "cpu" and torch.cuda.is_available()
        for layer in self.layers:
            layer.move(device, pin)

    @property
    def num_bytes(self) -> int:
        """Bytes of storage of all layers."""
        return sum(layer.num_bytes for layer in self.layers)

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in all layers; 0 before the first one was written."""
        return sum(layer.token_bytes for layer in self.layers)
