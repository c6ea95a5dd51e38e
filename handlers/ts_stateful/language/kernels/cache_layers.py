"""The layers of a step's cache, as far as stock code reads and writes them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

__all__ = ["AttentionLayer", "RecurrentLayer", "load_states", "take_states"]


class _Step(Protocol):
    """The cache of the layers."""

    @property
    def num_seen(self) -> int | Tensor:
        """See `StepCache`."""
        ...

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """See `StepCache`."""
        ...


class AttentionLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not typed
    """A layer that keeps keys and values; stock code asks it for the sizes of a mask."""

    is_sliding = False  # everything is kept; the mask hides what is outside of a window
    is_croppable = False

    def __init__(self, step: _Step, index: int) -> None:
        super().__init__()
        self._step = step
        self._index = index
        self.is_initialized = True
        self.keys = self.values = torch.empty(0)  # an unused layer holds nothing of its own

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise NotImplementedError("the states of a session have their layout from the beginning")

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        return self._step.update(key_states, value_states, self._index)

    def get_seq_length(self) -> int | Tensor:
        return self._step.num_seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        num_seen = self._step.num_seen
        if isinstance(num_seen, Tensor):
            raise NotImplementedError("a step of many sessions has no mask")
        return num_seen + query_length, 0

    def get_max_length(self) -> int:
        return -1


class RecurrentLayer(LinearAttentionLayer, AttentionLayer):  # type: ignore[misc]
    """A layer with recurrent or convolution states, beside keys and values in some models, of one session or a batch."""

    def __init__(self, step: _Step, index: int, num_states: int) -> None:
        AttentionLayer.__init__(self, step, index)
        LinearAttentionLayer.__init__(self, num_states)

    def load(self, states: Sequence[Tensor | None]) -> None:
        """Take states that a step may change: convolution and recurrent states in turns; none before the first token."""
        LinearAttentionLayer.__init__(self, self.number_of_states)
        for index in range(len(states) // 2):
            convolution, recurrent = states[2 * index : 2 * index + 2]
            self.has_previous_state[index] = True
            self.conv_states[index], self.recurrent_states[index] = convolution, recurrent
            self.is_conv_states_initialized[index] = convolution is not None
            self.is_recurrent_states_initialized[index] = recurrent is not None
            if convolution is not None:
                self.conv_kernel_size[index] = convolution.shape[-1]

    def take(self) -> list[Tensor | None]:
        """Return the states after a step."""
        return [
            state
            for index in range(self.number_of_states)
            for state in (self.conv_states[index], self.recurrent_states[index])
        ]


def load_states(
    layers: Sequence[RecurrentLayer], sessions: Sequence[Sequence[Tensor | None] | None]
) -> None:
    """Give the layers copies of the states of sessions, `(1, ...)` each, as a batch; None before a session's first token."""
    parts = zip(*(states or () for states in sessions), strict=True)
    batch = iter([None if part[0] is None else torch.cat(part) for part in parts])
    for layer in layers:
        layer.load(list(itertools.islice(batch, 2 * layer.number_of_states)))


def take_states(layers: Sequence[RecurrentLayer], num_sessions: int) -> list[list[Tensor | None]]:
    """Return the states of each session after a step; those of one do not keep the memory of others."""
    batch = [state for layer in layers for state in layer.take()]
    if num_sessions == 1:
        return [batch]
    return [
        [None if state is None else state[index : index + 1].clone() for state in batch]
        for index in range(num_sessions)
    ]
