"""Decoder layers of a stock network as the Triton kernels read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ts_stateful.language.kernels.decoder_layout import (
    Decoder,
    UnknownDecoderError,
    activation_of,
    feed_forward_of,
    has_positions,
    norms_of,
    router_of,
)
from ts_stateful.language.kernels.gpu.decoder_code import GELU, SILU
from ts_stateful.language.kernels.rule import Rule
from ts_stateful.language.kv.layout import LayerShape

__all__ = ["DecoderLayer", "Linear", "Norm"]

_ACTIVATIONS: Final = {"silu": SILU, "gelu": GELU}


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm by root mean squares, times its weights and an offset of them."""

    weight: Tensor
    epsilon: float
    offset: float

    @classmethod
    def of(cls, norm: Any, offset: float) -> Norm | None:
        """Describe a stock norm; None is none."""
        if norm is None:
            return None
        return cls(norm.weight, getattr(norm, "eps", None) or norm.variance_epsilon, offset)


@dataclass(frozen=True, eq=False)
class Linear:
    """Weights `(outputs, inputs)`; of a gate and what it multiplies, one after the other."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, *linears: Any) -> Linear:
        """Join layers of the same inputs, whose parameters become parts of the joined ones."""
        if len(linears) == 1:
            return cls(linears[0].weight, linears[0].bias)
        biases = [linear.bias for linear in linears]
        return cls(
            _joined([linear.weight for linear in linears]),
            None if biases[0] is None else _joined(biases),
        )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    whole = torch.cat([part.detach() for part in parts])
    for part, place in zip(parts, whole.split([len(part) for part in parts]), strict=True):
        part.data = place
    return whole


@dataclass(frozen=True, eq=False)
class DecoderLayer:
    """One decoder layer. Norms are `None` where it has none."""

    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    norm: Norm | None
    head_norms: Norm | None  # (2, dim): of queries and of keys
    ffn_norm: Norm | None
    activation: int
    rule: Rule
    window: int | None
    kind: int | None  # of its positions; None if it has none
    residual: float
    attended_norm: Norm | None = None
    fed_norm: Norm | None = None

    @classmethod
    def of(
        cls, decoder: Decoder, layer: Any, shape: LayerShape, window: int | None
    ) -> DecoderLayer:
        """Describe a stock layer.

        Raises:
            UnknownDecoderError: the kernels do not support it.
        """
        attention, mlp = layer.self_attn, feed_forward_of(layer)
        if router_of(mlp) is not None:
            raise UnknownDecoderError(f"{type(mlp).__name__} is not supported on a GPU")
        if shape.key_dim != attention.head_dim or shape.value_dim != attention.head_dim:
            raise UnknownDecoderError(f"states of {shape} are not supported on a GPU")
        norms = {
            place: Norm.of(norm, decoder.norm_offset) for place, norm in norms_of(layer).items()
        }
        packed = getattr(attention, "qkv_proj", None)
        qkv = [packed] if packed else [attention.q_proj, attention.k_proj, attention.v_proj]
        return cls(
            qkv=Linear.of(*qkv),
            out=Linear.of(attention.o_proj),
            gate_up=_gate_up(mlp),
            down=Linear.of(mlp.down_proj),
            head_norms=_both(norms.pop("q_norm"), norms.pop("k_norm"), attention.head_dim),
            activation=_ACTIVATIONS[activation_of(mlp)],
            rule=Rule(
                attention.scaling,
                getattr(attention, "attn_logit_softcapping", None),
                getattr(attention, "sinks", None),
            ),
            window=window,
            kind=decoder.rotary.kind_of(attention) if has_positions(attention) else None,
            residual=getattr(layer, "residual_multiplier", 1.0),
            **norms,
        )


def _gate_up(mlp: Any) -> Linear:
    if hasattr(mlp, "gate_up_proj"):
        return Linear.of(mlp.gate_up_proj)
    return Linear.of(mlp.gate_proj, mlp.up_proj)


def _both(q_norm: Norm | None, k_norm: Norm | None, dim: int) -> Norm | None:
    """Return the norms of single heads as one."""
    if q_norm is None or k_norm is None:
        return None
    if q_norm.weight.numel() != dim:
        raise UnknownDecoderError("norms of all heads together are not supported on a GPU")
    both = torch.stack([q_norm.weight.detach(), k_norm.weight.detach()])
    return Norm(both, q_norm.epsilon, q_norm.offset)
