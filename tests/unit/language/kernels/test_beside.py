"""Attention to images beside the text, beside the stock layer."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.tiny.beside import mllama
from ts_stateful.language.kernels.beside import ImageStates, Run


@torch.inference_mode()
def test_a_layer_attends_as_stock_code_does() -> None:
    """Tokens of several sessions in one row: to two images, to a part of one, and to none."""
    network = mllama().network
    layer: Any = network.get_decoder().layers[3].cross_attn
    hidden, states = torch.randn(1, 7, 64), torch.randn(1, 30, 64)
    stock = type(layer).forward
    shape = (1, 30, layer.num_key_value_heads, layer.head_dim)
    keys = layer.k_norm(layer.k_proj(states).view(shape).transpose(1, 2))[0]
    values = layer.v_proj(states).view(shape).transpose(1, 2)[0]
    unused = [torch.empty(0)] * 2  # of the first such layer
    first, second = (
        (*unused, keys[:, part], values[:, part]) for part in (slice(20), slice(20, 30))
    )
    runs = [
        Run(3, [(first, 20), (second, 10)]),
        Run(2, [(first, 12)]),
        Run(2, []),
    ]
    found, _ = layer(hidden_states=hidden, cross_attention_states=ImageStates(runs))
    # A mask that hides nothing; without one, stock code would take the attention for a causal one.
    both, _ = stock(layer, hidden[:, :3], states, attention_mask=torch.zeros(1, 1, 3, 30))
    part, _ = stock(layer, hidden[:, 3:5], states[:, :12], attention_mask=torch.zeros(1, 1, 2, 12))
    expected = torch.cat([both, part, torch.zeros(1, 2, 64)], dim=1)
    torch.testing.assert_close(found, expected)
    again, _ = layer(hidden_states=hidden, cross_attention_states=states)
    torch.testing.assert_close(again, stock(layer, hidden, states)[0])
