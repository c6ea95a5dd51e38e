"""Small language models with recurrent states, some of them beside attention."""

from __future__ import annotations

from typing import Any

from transformers import (
    BambaConfig,
    BambaForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    FalconMambaConfig,
    FalconMambaForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    JambaConfig,
    JambaForCausalLM,
    KimiLinearConfig,
    KimiLinearForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Lfm2MoeConfig,
    Lfm2MoeForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    OlmoHybridConfig,
    OlmoHybridForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from tests.support.tiny.releases import since
from tests.support.tiny.small import SMALL
from tests.support.tiny.text import chats
from ts_stateful.language.network.load import Model

_LINEAR: dict[str, Any] = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}


def bamba() -> Model:
    """Build Bamba: Mamba 2 and attention."""
    return chats(
        "bamba", 60, BambaForCausalLM, BambaConfig(**SMALL, **_MAMBA, attn_layer_indices=[1])
    )


def falcon_h1() -> Model:
    """Build Falcon-H1: Mamba 2 beside attention in each layer."""
    config = FalconH1Config(**SMALL, **_MAMBA, mamba_d_ssm=128, head_dim=16)
    return chats("falcon_h1", 61, FalconH1ForCausalLM, config)


def granite_hybrid() -> Model:
    """Build Granite 4 H: Mamba 2 and attention without positions."""
    config = GraniteMoeHybridConfig(
        **SMALL,
        **_MAMBA,
        layer_types=["mamba", "attention"],
        num_local_experts=0,
        shared_intermediate_size=64,
    )
    return chats("granite_hybrid", 62, GraniteMoeHybridForCausalLM, config)


def jamba() -> Model:
    """Build Jamba: Mamba and attention, experts."""
    config = JambaConfig(
        **SMALL,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=2,
        mamba_d_state=8,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    )
    return chats("jamba", 63, JambaForCausalLM, config)


def lfm2() -> Model:
    """Build LFM2: short convolutions and attention."""
    config = Lfm2Config(
        **SMALL, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False
    )
    return chats("lfm2", 64, Lfm2ForCausalLM, config)


def mamba() -> Model:
    """Build Mamba, which has no attention."""
    config = MambaConfig(
        vocab_size=512,
        hidden_size=64,
        state_size=8,
        num_hidden_layers=2,
        initializer_range=0.2,
        tie_word_embeddings=False,
        eos_token_id=2,
    )
    config.max_position_embeddings = 1024
    return chats("mamba", 65, MambaForCausalLM, config)


def mamba2() -> Model:
    """Build Mamba 2, which has no attention."""
    config = Mamba2Config(
        vocab_size=512,
        hidden_size=64,
        state_size=8,
        num_heads=8,
        head_dim=16,
        n_groups=1,
        chunk_size=8,
        num_hidden_layers=2,
        initializer_range=0.2,
        tie_word_embeddings=False,
        eos_token_id=2,
    )
    config.max_position_embeddings = 1024
    return chats("mamba2", 66, Mamba2ForCausalLM, config)


def nemotron_h() -> Model:
    """Build Nemotron-H: layers of Mamba 2, attention and feed-forward in turns."""
    since("5.23", "earlier ones take one session a pass")
    config = NemotronHConfig(
        **{**SMALL, "num_hidden_layers": 4},
        layers_block_type=["mamba", "mlp", "attention", "mlp"],
        head_dim=16,
        mamba_num_heads=8,
        mamba_head_dim=16,
        ssm_state_size=8,
        n_groups=1,
        chunk_size=8,
    )
    return chats("nemotron_h", 67, NemotronHForCausalLM, config)


def qwen3_next() -> Model:
    """Build Qwen3-Next: gated delta rule and attention, experts."""
    config = Qwen3NextConfig(
        **SMALL,
        **_LINEAR,
        head_dim=16,
        layer_types=["linear_attention", "full_attention"],
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    )
    return chats("qwen3_next", 68, Qwen3NextForCausalLM, config)


def qwen3_5() -> Model:
    """Build Qwen3.5, text: gated delta rule and gated attention."""
    config = Qwen3_5TextConfig(
        **SMALL, **_LINEAR, head_dim=16, layer_types=["linear_attention", "full_attention"]
    )
    return chats("qwen3_5", 69, Qwen3_5ForCausalLM, config)


def kimi_linear() -> Model:
    """Build Kimi Linear: delta attention and latent attention, experts."""
    config = KimiLinearConfig(
        **{**SMALL, "num_key_value_heads": 4},
        layer_types=["linear_attention", "full_attention"],
        mlp_layer_types=["dense", "sparse"],
        linear_head_dim=16,
        linear_num_heads=4,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        moe_intermediate_size=32,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return chats("kimi_linear", 70, KimiLinearForCausalLM, config)


def falcon_mamba() -> Model:
    """Build Falcon Mamba: Mamba 1 with more norms."""
    config = FalconMambaConfig(
        vocab_size=512,
        hidden_size=64,
        state_size=8,
        num_hidden_layers=2,
        initializer_range=0.2,
        tie_word_embeddings=False,
        eos_token_id=2,
    )
    config.max_position_embeddings = 1024
    return chats("falcon_mamba", 71, FalconMambaForCausalLM, config)


def olmo_hybrid() -> Model:
    """Build OLMo hybrid: gated delta rule and attention."""
    config = OlmoHybridConfig(
        **SMALL, **_LINEAR, layer_types=["linear_attention", "full_attention"]
    )
    return chats("olmo_hybrid", 72, OlmoHybridForCausalLM, config)


def lfm2_moe() -> Model:
    """Build LFM2 MoE: short convolutions and attention, experts."""
    config = Lfm2MoeConfig(
        **SMALL,
        layer_types=["conv", "full_attention"],
        num_dense_layers=1,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
    )
    return chats("lfm2_moe", 73, Lfm2MoeForCausalLM, config)
