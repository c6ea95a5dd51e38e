"""Small text models whose decoder layers differ little from Llama's."""

from __future__ import annotations

from transformers import (
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    Exaone4Config,
    Exaone4ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    GlmConfig,
    GlmForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    SeedOssConfig,
    SeedOssForCausalLM,
)

from tests.support.tiny.small import SMALL
from tests.support.tiny.text import MIXED, chats
from ts_stateful.language.network.load import Model

__all__ = [
    "FAR",
    "ernie4_5",
    "exaone4",
    "gemma",
    "glm",
    "glm4",
    "granite_moe",
    "ministral",
    "ministral3",
    "olmo3",
    "olmoe",
    "seed_oss",
]

FAR = 800  # the position from which on Ministral 3's queries grow


def ernie4_5() -> Model:
    """Build ERNIE 4.5: interleaved rotation, biases everywhere."""
    return chats("ernie4_5", 51, Ernie4_5ForCausalLM, Ernie4_5Config(**SMALL, use_bias=True))


def exaone4() -> Model:
    """Build EXAONE 4: norms after instead of before, windows in every other layer, no positions in those without."""
    return chats("exaone4", 52, Exaone4ForCausalLM, Exaone4Config(**MIXED))


def gemma() -> Model:
    """Build Gemma: one key head, scaled embeddings."""
    config = GemmaConfig(**{**SMALL, "num_key_value_heads": 1}, head_dim=32)
    return chats("gemma", 53, GemmaForCausalLM, config)


def glm() -> Model:
    """Build GLM: interleaved rotation of a half of each head, packed projections."""
    return chats("glm", 54, GlmForCausalLM, GlmConfig(**SMALL, head_dim=32))


def glm4() -> Model:
    """Build GLM-4: interleaved rotation of a half of each head, norms before and after."""
    return chats("glm4", 55, Glm4ForCausalLM, Glm4Config(**SMALL, head_dim=32))


def granite_moe() -> Model:
    """Build Granite MoE: multipliers everywhere, experts."""
    config = GraniteMoeConfig(
        **SMALL,
        attention_multiplier=0.3,
        embedding_multiplier=2.0,
        residual_multiplier=0.7,
        logits_scaling=0.5,
        num_local_experts=8,
        num_experts_per_tok=3,
    )
    return chats("granite_moe", 69, GraniteMoeForCausalLM, config)


def ministral() -> Model:
    """Build Ministral: windows in every other layer."""
    return chats("ministral", 56, MinistralForCausalLM, MinistralConfig(**MIXED))


def ministral3() -> Model:
    """Build Ministral 3: queries that grow from a far position on, which stock code computes."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 16.0,
        "original_max_position_embeddings": FAR,
        "llama_4_scaling_beta": 0.1,
    }
    config = Ministral3Config(**SMALL, head_dim=32, rope_parameters=rope)
    return chats("ministral3", 57, Ministral3ForCausalLM, config)


def olmo3() -> Model:
    """Build OLMo 3: norms after instead of before, windows in every other layer, which have their own positions."""
    plain = {"rope_type": "default", "rope_theta": 1e4}
    rope = {"sliding_attention": plain, "full_attention": {**plain, "rope_theta": 1e6}}
    return chats("olmo3", 58, Olmo3ForCausalLM, Olmo3Config(**MIXED, rope_parameters=rope))


def olmoe() -> Model:
    """Build OLMoE: normalized queries and keys, experts, whose weights do not add up to one."""
    config = OlmoeConfig(**SMALL, num_experts=8, num_experts_per_tok=3)
    return chats("olmoe", 59, OlmoeForCausalLM, config)


def seed_oss() -> Model:
    """Build Seed-OSS: heads wider than the model, biases on queries, keys and values."""
    return chats("seed_oss", 60, SeedOssForCausalLM, SeedOssConfig(**SMALL, head_dim=32))
