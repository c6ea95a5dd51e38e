"""A decoder layer's data describe what the stock modules have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.tiny import MODELS, MORE_MODELS
from ts_stateful.language.kernels.cpu.kept_experts import keep_experts
from ts_stateful.language.kernels.cpu.layer_facts import LayerFacts
from ts_stateful.language.kernels.decoder_layout import UnknownDecoderError, find_decoder
from ts_stateful.language.network.load import Model


def facts_of(model: Model, index: int) -> LayerFacts:
    decoder = find_decoder(model.network)
    shape, window = model.forward.layout.layers[index], model.forward.windows[index]
    return LayerFacts.of(decoder, decoder.layers[index], shape, window, 16)


def test_packed_projections_are_parts_of_one_weight() -> None:
    """Queries, keys and values follow one another, and so do gate and up."""
    model = MODELS["phi3"]()
    facts = facts_of(model, 1)
    layer: Any = model.network.model.layers[1]
    packed, both = layer.self_attn.qkv_proj.weight, layer.mlp.gate_up_proj.weight
    assert facts.q.weight == packed.data_ptr()
    assert facts.k.weight == packed[64:].data_ptr()
    assert facts.v.weight == packed[96:].data_ptr()
    assert (facts.q.out, facts.k.out, facts.v.out) == (64, 32, 32)
    assert facts.experts.gate.weight == both.data_ptr()
    assert facts.experts.up.weight == both[128:].data_ptr()


def test_norms_have_their_places() -> None:
    """Before, after, or both; a norm that a layer does not have has no weight."""
    gemma, olmo, llama = (
        facts_of({**MODELS, **MORE_MODELS}[name](), 0) for name in ("gemma3", "olmo2", "llama")
    )
    assert all((gemma.norm.weight, gemma.attended_norm.weight, gemma.ffn_norm.weight))
    assert gemma.norm.offset == 1
    assert olmo.norm.weight is None
    assert olmo.ffn_norm.weight is None
    assert olmo.fed_norm.weight
    assert olmo.q_norm.dim == 64  # all heads together
    assert llama.attended_norm.weight is None
    assert llama.norm.offset == 0


def test_layers_with_a_window_have_positions_of_their_own() -> None:
    """In a model of several kinds of layers."""
    model = MODELS["gemma3"]()
    first, second = facts_of(model, 0), facts_of(model, 1)
    assert first.window == 12
    assert second.window == 0
    assert first.positions != second.positions


def test_experts_are_a_stride_apart() -> None:
    """The second expert's weights are those of the stock module."""
    model = MORE_MODELS["mixtral"]()
    experts = facts_of(model, 0).experts
    stock: Any = model.network.model.layers[0].mlp.experts
    assert experts.router.out == 4
    assert experts.gate.weight + 4 * experts.stride == stock.gate_up_proj[1].data_ptr()
    assert experts.down.weight + 4 * experts.down_stride == stock.down_proj[1].data_ptr()


def test_turned_experts_have_biases_and_a_clamped_activation() -> None:
    """And the layer has a score of each head that has no value."""
    model = MORE_MODELS["gpt_oss"]()
    unused: Any = None
    keep_experts(model.network, unused, {})
    facts = facts_of(model, 0)
    turned: Any = model.network.model.layers[0].mlp.experts
    assert facts.experts.router.bias == model.network.model.layers[0].mlp.router.bias.data_ptr()
    assert facts.experts.up.bias == turned.gate_up_proj_bias[0, 128:].data_ptr()
    assert facts.experts.down.bias == turned.down_proj_bias.data_ptr()
    limits = facts.experts.alpha, facts.experts.limit
    assert limits == pytest.approx((turned.alpha, turned.limit))


def test_layers_of_unsupported_sizes_are_refused() -> None:
    """The reason has the sizes."""
    model = MODELS["llama"]()
    mlp: Any = model.network.model.layers[0].mlp
    mlp.up_proj, mlp.gate_proj = (torch.nn.Linear(64, 40, bias=False).eval() for _ in range(2))
    mlp.down_proj = torch.nn.Linear(40, 64, bias=False).eval()
    with pytest.raises(UnknownDecoderError, match=r"layers of .*40.* are not supported"):
        facts_of(model, 0)
