"""Decoder layers as the data that `src/layer.h` reads: weights, norms, positions, attention and experts of each."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from torch import nn
from transformers.activations import GELUTanh, SiLUActivation

from ts_stateful.language.kernels.cpu.decoder_layout import Decoder, UnknownDecoderError
from ts_stateful.language.kernels.cpu.library import LANES, AttentionFacts, LinearFacts
from ts_stateful.language.kv.cache import LayerShape

__all__ = ["LayerFacts"]

_WORD: Final = ctypes.c_int64
_ACTIVATIONS: Final = {nn.SiLU: 0, SiLUActivation: 0, GELUTanh: 1}


class _NormFacts(ctypes.Structure):
    """`Norm`: of root mean squares, times its weights and an offset of them; without weights there is none."""

    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("dim", _WORD),
        ("epsilon", ctypes.c_float),
        ("offset", ctypes.c_float),
    ]

    @classmethod
    def of(cls, norm: Any, offset: float) -> _NormFacts:
        """Describe a stock norm; None is none."""
        if norm is None:
            return cls()
        epsilon = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
        return cls(norm.weight.data_ptr(), norm.weight.numel(), epsilon, offset)


class _ExpertFacts(ctypes.Structure):
    """`Experts`: the layers of the first one, and the floats between one and the next. Without a router there is one."""

    _fields_ = [
        *((name, LinearFacts) for name in ("router", "gate", "up", "down")),
        *((name, _WORD) for name in ("stride", "down_stride", "chosen", "rescaled", "activation")),
    ]

    @classmethod
    def of(cls, mlp: Any) -> _ExpertFacts:
        """Describe a stock feed-forward part.

        Raises:
            UnknownDecoderError: its activation is unknown.
        """
        experts = getattr(mlp, "experts", mlp)
        function = getattr(experts, "act_fn", None) or experts.activation_fn
        if type(function) not in _ACTIVATIONS:
            raise UnknownDecoderError(f"{type(function).__name__} is not known")
        activation = _ACTIVATIONS[type(function)]
        if experts is not mlp:
            return cls._chosen(mlp.gate, experts, activation)
        if hasattr(mlp, "gate_up_proj"):
            both = LinearFacts.of(mlp.gate_up_proj)
            gate, up = both.part(0, both.out // 2), both.part(both.out // 2, both.out // 2)
        else:
            gate, up = LinearFacts.of(mlp.gate_proj), LinearFacts.of(mlp.up_proj)
        down = LinearFacts.of(mlp.down_proj)
        return cls(LinearFacts(), gate, up, down, chosen=1, activation=activation)

    @classmethod
    def _chosen(cls, router: Any, experts: Any, activation: int) -> _ExpertFacts:
        num, both, width = experts.gate_up_proj.shape
        first = LinearFacts(experts.gate_up_proj.data_ptr(), None, width, both)
        return cls(
            LinearFacts(router.weight.data_ptr(), None, width, num),
            first.part(0, both // 2),
            first.part(both // 2, both // 2),
            LinearFacts(experts.down_proj.data_ptr(), None, both // 2, width),
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
        *((name, _NormFacts) for name in ("norm", "q_norm", "k_norm")),
        *((name, _NormFacts) for name in ("attended_norm", "ffn_norm", "fed_norm")),
        ("experts", _ExpertFacts),
        ("attention", AttentionFacts),
        *((name, _WORD) for name in ("window", "turned", "positions")),
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
            experts=_ExpertFacts.of(layer.mlp),
            window=window or 0,
            turned=turned if getattr(attention, "use_rope", True) else 0,
            positions=_positions(decoder, attention),
            residual=getattr(layer, "residual_multiplier", 1.0),
        )
        for name, norm in _norms(layer).items():
            setattr(facts, name, _NormFacts.of(norm, decoder.norm_offset))
        cap = getattr(attention, "attn_logit_softcapping", None) or 0.0
        group = facts.q.out // facts.k.out
        facts.attention = AttentionFacts(
            facts.k.out // dim, group, dim, dim, attention.scaling, cap
        )
        if (shape.heads, shape.key_dim, shape.value_dim) != (facts.k.out // dim, dim, dim):
            raise UnknownDecoderError(f"states of {shape} are not supported")
        facts._check_sizes()
        return facts

    def _check_sizes(self) -> None:
        layers = (self.q, self.o, self.experts.gate, self.experts.down)
        sizes = [size for layer in layers for size in (layer.in_, layer.out)]
        if any(size % LANES for size in sizes) or self.turned % 2:
            raise UnknownDecoderError(f"layers of {sizes} are not supported")


def _projections(attention: Any) -> list[LinearFacts]:
    out = LinearFacts.of(attention.o_proj)
    if not hasattr(attention, "qkv_proj"):
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        return [*map(LinearFacts.of, projections), out]
    packed = LinearFacts.of(attention.qkv_proj)
    num = (packed.out - out.in_) // 2  # of keys, and of values
    parts = ((0, out.in_), (out.in_, num), (out.in_ + num, num))
    return [*(packed.part(*part) for part in parts), out]


def _norms(layer: Any) -> dict[str, Any]:
    """Return the norms of a layer by their places; None for those that it does not have."""
    names = {"norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    if hasattr(layer, "post_feedforward_layernorm"):
        names |= {
            "attended_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "fed_norm": "post_feedforward_layernorm",
        }
    norms = {place: getattr(layer, name, None) for place, name in names.items()}
    return norms | {name: getattr(layer.self_attn, name, None) for name in ("q_norm", "k_norm")}


def _positions(decoder: Decoder, attention: Any) -> int:
    return 0 if len(decoder.kinds) == 1 else decoder.kinds.index(attention.layer_type)
