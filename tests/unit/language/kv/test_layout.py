"""The states that a model keeps for a token."""

from __future__ import annotations

import torch

from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.layout import KVLayout, LayerShape

HOST = torch.device("cpu")


def test_states_of_all_layers_are_where_their_addresses_are() -> None:
    """With layers of several shapes, one without states, and indexes; also after the states have moved."""
    shapes = (LayerShape(2, 4, 3), LayerShape(0, 0, 0), LayerShape(1, 4, 4))
    kv = KVCache(KVLayout(shapes, torch.bfloat16, indexes=(0, 5, 0)), HOST)
    for num_tokens in (10, 5000):
        kv.reserve(num_tokens)
        parts = [part for layer in range(3) for part in (kv.keys(layer), kv.values(layer))]
        for part, address in zip(parts, kv.addresses, strict=True):
            assert part.data_ptr() == address or not part.numel()
        sizes = [tuple(part.shape[::2]) for part in parts]
        assert sizes == [(2, 4), (2, 3), (0, 0), (0, 0), (1, 4), (1, 4)]
        assert kv.index(1).shape == (1, kv.capacity, 5)
        assert [part.data_ptr() for part in kv.states][-2] == kv.index(1).data_ptr()


def test_layers_of_one_shape_have_one_tensor() -> None:
    """An idle session of a deep model would keep two for each layer."""
    kv = KVCache(KVLayout((LayerShape(2, 4, 4),) * 32, torch.float32), HOST)
    assert [tuple(block.shape) for block in kv.blocks] == [(64, 2, 0, 4)]
