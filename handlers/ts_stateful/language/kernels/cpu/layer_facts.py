"""Decoder layers as the data that `src/layer.h` reads: weights, norms, positions, attention and experts of each."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import torch
from torch import nn

from ts_stateful.language.kernels.cpu.kept_experts import TurnedExperts
from ts_stateful.language.kernels.cpu.library import (
    LANES,
    AttentionFacts,
    LinearFacts,
    vector_width,
)
from ts_stateful.language.kernels.cpu.rounded import Rounded
from ts_stateful.language.kernels.decoder_layout import (
    Decoder,
    UnknownDecoderError,
    activation_of,
    feed_forward_of,
    has_positions,
    norms_of,
    router_of,
)
from ts_stateful.language.kv.layout import LayerShape

__all__ = ["LayerFacts", "NormFacts"]

_WORD: Final = ctypes.c_int64
_CLAMPED: Final = 2  # the activation of gpt-oss
_ACTIVATIONS: Final = {"silu": 0, "gelu": 1}


class NormFacts(ctypes.Structure):
    """`Norm`: of root mean squares, times its weights and an offset of them; without weights there is none."""

    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("dim", _WORD),
        ("epsilon", ctypes.c_float),
        ("offset", ctypes.c_float),
    ]

    @classmethod
    def of(cls, norm: Any, offset: float) -> NormFacts:
        """Describe a stock norm; None is none."""
        if norm is None:
            return cls()
        epsilon = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
        return cls(norm.weight.data_ptr(), norm.weight.numel(), epsilon, offset)


class _ExpertFacts(ctypes.Structure):
    """`Experts`: the layers of the first one, and the weights between one and the next. Without a router there is one."""

    _fields_ = [
        *((name, LinearFacts) for name in ("router", "gate", "up", "down")),
        *((name, _WORD) for name in ("stride", "down_stride", "chosen", "rescaled", "activation")),
        *((name, ctypes.c_float) for name in ("alpha", "limit")),
    ]

    @classmethod
    def of(cls, mlp: Any) -> _ExpertFacts:
        """Describe a stock feed-forward part.

        Raises:
            UnknownDecoderError: its activation is unknown.
        """
        experts = getattr(mlp, "experts", mlp)
        if isinstance(experts, TurnedExperts):
            facts = cls._chosen(router_of(mlp), experts, _CLAMPED)
            facts.alpha, facts.limit = experts.alpha, experts.limit
            return facts
        activation = _ACTIVATIONS[activation_of(experts)]
        if experts is not mlp:
            return cls._chosen(router_of(mlp), experts, activation)
        if hasattr(mlp, "gate_up_proj"):
            half = mlp.gate_up_proj.out_features // 2
            gate, up = (LinearFacts.part(mlp.gate_up_proj, at, half) for at in (0, half))
        else:
            gate, up = map(_linear, (mlp.gate_proj, mlp.up_proj))
        down = _linear(mlp.down_proj)
        return cls(LinearFacts(), gate, up, down, chosen=1, activation=activation)

    @classmethod
    def _chosen(cls, router: Any, experts: Any, activation: int) -> _ExpertFacts:
        _, both, width = experts.gate_up_proj.shape
        gate, up = experts.gate_up_proj[0].chunk(2)
        biases, down_biases = (
            getattr(experts, f"{name}_bias", None) for name in ("gate_up_proj", "down_proj")
        )
        gate_bias, up_bias = (None, None) if biases is None else biases[0].chunk(2)
        return cls(
            LinearFacts.of(router.weight, getattr(router, "bias", None)),
            LinearFacts.of(gate, gate_bias),
            LinearFacts.of(up, up_bias),
            LinearFacts.of(experts.down_proj[0], None if down_biases is None else down_biases[0]),
            both * width,
            both // 2 * width,
            router.top_k,
            getattr(router, "norm_topk_prob", True),
            activation,
        )


class LayerFacts(ctypes.Structure):
    """`Decoder`: one layer, whose parameters must stay where they are."""

    _fields_ = [
        *((name, LinearFacts) for name in "qkvo"),
        *((name, NormFacts) for name in ("norm", "q_norm", "k_norm")),
        *((name, NormFacts) for name in ("attended_norm", "ffn_norm", "fed_norm")),
        ("experts", _ExpertFacts),
        ("attention", AttentionFacts),
        *((name, _WORD) for name in ("window", "turned", "positions", "neighbors")),
        ("sinks", ctypes.c_void_p),
        ("residual", ctypes.c_float),
    ]

    @classmethod
    def of(
        cls, decoder: Decoder, layer: Any, shape: LayerShape, window: int | None, turned: int
    ) -> LayerFacts:
        """Describe one of a decoder's layers.

        `turned` dimensions of each head are rotated. `window` is in tokens, None for all.

        Raises:
            UnknownDecoderError: the kernels do not support its dimensions or its activation.
        """
        attention = layer.self_attn
        dim = attention.head_dim
        facts = cls(
            *_projections(attention),
            experts=_ExpertFacts.of(feed_forward_of(layer)),
            window=window or 0,
            turned=turned if has_positions(attention) else 0,
            positions=decoder.rotary.kind_of(attention),
            neighbors=decoder.rotary.neighbors,
            residual=getattr(layer, "residual_multiplier", 1.0),
        )
        for name, norm in norms_of(layer).items():
            setattr(facts, name, NormFacts.of(norm, decoder.norm_offset))
        cap = getattr(attention, "attn_logit_softcapping", None) or 0.0
        group = facts.q.out // facts.k.out
        facts.attention = AttentionFacts(
            facts.k.out // dim, group, dim, dim, attention.scaling, cap
        )
        if (shape.heads, shape.key_dim, shape.value_dim) != (facts.k.out // dim, dim, dim):
            raise UnknownDecoderError(f"states of {shape} are not supported")
        facts._check_sizes(vector_width(decoder.weights))
        return facts

    def rounded(self, weights: torch.dtype) -> tuple[LayerFacts, list[Rounded]]:
        """Describe a layer without experts with its weights, which are of this dtype, rounded to 8 bits.

        These must stay where they are.

        Raises:
            UnknownDecoderError: the kernels do not support its dimensions with such weights.
        """
        other, kept = LayerFacts.from_buffer_copy(self), list[Rounded]()
        for facts, name in other._linear_places():
            linear, rounded = getattr(facts, name).rounded(weights)
            setattr(facts, name, linear)
            kept.append(rounded)
        other._check_sizes(vector_width(torch.int8))
        return other, kept

    @property
    def linears(self) -> list[LinearFacts]:
        """Its linear layers, those of one expert."""
        return [getattr(facts, name) for facts, name in self._linear_places()]

    def _linear_places(self) -> list[tuple[Any, str]]:
        of_experts = ((self.experts, name) for name in ("gate", "up", "down"))
        return [*((self, name) for name in "qkvo"), *of_experts]

    def _check_sizes(self, width: int) -> None:
        layers = (self.q, self.o, self.experts.gate, self.experts.down)
        inputs, outputs = [layer.in_ for layer in layers], [layer.out for layer in layers]
        uneven = any(size % width for size in inputs) or any(size % LANES for size in outputs)
        if uneven or self.turned % 2:
            raise UnknownDecoderError(f"layers of {inputs} to {outputs} are not supported")


def _linear(linear: nn.Linear) -> LinearFacts:
    return LinearFacts.of(linear.weight, linear.bias)


def _projections(attention: Any) -> list[LinearFacts]:
    out = _linear(attention.o_proj)
    if not hasattr(attention, "qkv_proj"):
        return [*map(_linear, (attention.q_proj, attention.k_proj, attention.v_proj)), out]
    packed = attention.qkv_proj
    num = (packed.out_features - out.in_) // 2  # of keys, and of values
    parts = ((0, out.in_), (out.in_, num), (out.in_ + num, num))
    return [*(LinearFacts.part(packed, begin, some) for begin, some in parts), out]
