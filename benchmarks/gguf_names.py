"""Names of a Llama's weights in a GGUF file, and the order of their rows.

Rows of the query and key projections are permuted: `transformers` rotates the two halves of a head, llama.cpp neighboring
pairs.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["permuted", "target_of"]

_WHOLE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def target_of(name: str) -> str:
    """Return llama.cpp's name of a weight of a Llama of `transformers`."""
    owner = name.removesuffix(".weight")
    if owner in _WHOLE:
        return f"{_WHOLE[owner]}.weight"
    _, _, number, part = owner.split(".", 3)  # model.layers.<number>.<part>
    return f"blk.{number}.{_LAYER[part]}.weight"


def permuted(weight: Tensor, num_heads: int) -> Tensor:
    """Return rows `(heads, 2, half)` as `(heads, half, 2)`: a head's halves become neighboring pairs."""
    rows, columns = weight.shape
    split = weight.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return split.swapaxes(1, 2).reshape(rows, columns)
