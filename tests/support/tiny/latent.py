"""Small language models that keep compressed keys and values (MLA)."""

from __future__ import annotations

from typing import Any

from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DeepseekV32Config,
    DeepseekV32ForCausalLM,
    Glm4MoeLiteConfig,
    Glm4MoeLiteForCausalLM,
    GlmMoeDsaConfig,
    GlmMoeDsaForCausalLM,
    LongcatFlashConfig,
    LongcatFlashForCausalLM,
    MiniCPM3Config,
    MiniCPM3ForCausalLM,
    Mistral4Config,
    Mistral4ForCausalLM,
    YoutuConfig,
    YoutuForCausalLM,
)

from tests.support.tiny.small import SMALL
from tests.support.tiny.text import chats
from ts_stateful.language.network.load import Model

_LATENT: dict[str, Any] = {
    **SMALL,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
_EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
# Many heads: where all of them score zero, the choice among equals would be chance.
_INDEX: dict[str, Any] = {"index_topk": 8, "index_head_dim": 16, "index_n_heads": 16}


def deepseek_v2() -> Model:
    """Build DeepSeek-V2 as its Lite has it: queries are not compressed."""
    config = DeepseekV2Config(**{**_LATENT, **_EXPERTS, "q_lora_rank": None})
    return chats("deepseek_v2", 31, DeepseekV2ForCausalLM, config)


def deepseek_v3() -> Model:
    """Build DeepSeek-V3: keys and values of different widths."""
    config = DeepseekV3Config(**_LATENT, **_EXPERTS)
    return chats("deepseek_v3", 30, DeepseekV3ForCausalLM, config)


def glm4_moe_lite() -> Model:
    """Build GLM-4 MoE lite, GLM-4.7-Flash."""
    config = Glm4MoeLiteConfig(**_LATENT, **_EXPERTS)
    return chats("glm4_moe_lite", 32, Glm4MoeLiteForCausalLM, config)


def longcat_flash() -> Model:
    """Build LongCat-Flash: two attentions in each layer, and scaled latents."""
    config = LongcatFlashConfig(
        **{name: value for name, value in _LATENT.items() if name != "num_hidden_layers"},
        num_layers=2,
        head_dim=8,
        ffn_hidden_size=128,
        expert_ffn_hidden_size=32,
        n_routed_experts=4,
        zero_expert_num=2,
        moe_topk=2,
    )
    return chats("longcat_flash", 33, LongcatFlashForCausalLM, config)


def minicpm3() -> Model:
    """Build MiniCPM3: rotation of halves, scaled embeddings and logits."""
    return chats("minicpm3", 34, MiniCPM3ForCausalLM, MiniCPM3Config(**_LATENT))


def mistral4() -> Model:
    """Build Mistral 4: queries that grow with their position."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 8.0,
        "original_max_position_embeddings": 16,
        "llama_4_scaling_beta": 0.5,
    }
    config = Mistral4Config(**_LATENT, **_EXPERTS, rope_parameters=rope)
    return chats("mistral4", 35, Mistral4ForCausalLM, config)


def youtu() -> Model:
    """Build Youtu-LLM."""
    return chats("youtu", 36, YoutuForCausalLM, YoutuConfig(**_LATENT))


def deepseek_v32() -> Model:
    """Build DeepSeek-V3.2: an index chooses the tokens to attend to."""
    config = DeepseekV32Config(**_LATENT, **_EXPERTS, **_INDEX)
    return chats("deepseek_v32", 37, DeepseekV32ForCausalLM, config)


def glm_moe_dsa() -> Model:
    """Build GLM-5: the index of every other layer chooses for the next one too."""
    config = GlmMoeDsaConfig(
        **{**_LATENT, "num_hidden_layers": 4},
        **_EXPERTS,
        **_INDEX,
        indexer_types=["full", "shared"] * 2,
    )
    return chats("glm_moe_dsa", 38, GlmMoeDsaForCausalLM, config)
