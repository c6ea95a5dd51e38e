"""More small language models, each tested in one long conversation."""

from __future__ import annotations

from typing import Any

from transformers import (
    BloomConfig,
    BloomForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MixtralConfig,
    MixtralForCausalLM,
    MptConfig,
    MptForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

from tests.support.tiny.releases import since
from tests.support.tiny.small import SMALL
from tests.support.tiny.text import MIXED, WINDOW, chats
from ts_stateful.language.network.load import Model


def gemma3n() -> Model:
    """Build Gemma 3n, text: the last layers use keys and values of earlier ones."""
    since("5.23", "earlier ones take one session a pass")
    config = Gemma3nTextConfig(
        **MIXED,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=512,
        hidden_size_per_layer_input=16,
        laurel_rank=8,
        altup_num_inputs=2,
        activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0],
    )
    return chats("gemma3n", 29, Gemma3nForCausalLM, config)


def gemma4() -> Model:
    """Build Gemma 4 E, text: shared keys and values, and wider heads in layers without a window."""
    since("5.23", "earlier ones take one session a pass")
    config = Gemma4TextConfig(
        **MIXED,
        num_kv_shared_layers=2,
        global_head_dim=32,
        vocab_size_per_layer_input=512,
        hidden_size_per_layer_input=16,
    )
    return chats("gemma4", 40, Gemma4ForCausalLM, config)


def gpt_neox() -> Model:
    """Build GPT-NeoX, Pythia: attention and feed-forward side by side, positions in a quarter of each head."""
    small = {name: value for name, value in SMALL.items() if name != "num_key_value_heads"}
    return chats("gpt_neox", 11, GPTNeoXForCausalLM, GPTNeoXConfig(**small))


def opt() -> Model:
    """Build OPT: learned positions with an offset of two."""
    config = OPTConfig(
        **{**SMALL, "max_position_embeddings": 512},
        ffn_dim=128,
        word_embed_proj_dim=64,
        init_std=0.2,
    )
    return chats("opt", 12, OPTForCausalLM, config)


def _falcon(name: str, seed: int, **config: Any) -> Model:
    small = {name: SMALL[name] for name in ("vocab_size", "hidden_size", "initializer_range")}
    falcon = FalconConfig(
        **small,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=0,
        eos_token_id=2,
        tie_word_embeddings=False,
        **config,
    )
    return chats(name, seed, FalconForCausalLM, falcon)


def falcon() -> Model:
    """Build Falcon: one key head, an attention outside of the library's interface."""
    return _falcon("falcon", 13, multi_query=True)


def falcon_alibi() -> Model:
    """Build Falcon as RefinedWeb-1B has it: biases by distance, which stock code makes from the attention mask."""
    return _falcon(
        "falcon_alibi", 14, alibi=True, multi_query=False, bias=True, parallel_attn=False
    )


def bloom() -> Model:
    """Build BLOOM: biases by distance, no positions."""
    config = BloomConfig(
        vocab_size=512,
        seq_length=512,
        hidden_size=64,
        n_layer=2,
        n_head=4,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=2,
    )
    return chats("bloom", 15, BloomForCausalLM, config)


def mpt() -> Model:
    """Build MPT: biases by distance, no positions, its own name for the length."""
    config = MptConfig(
        vocab_size=512,
        d_model=64,
        n_layers=2,
        n_heads=4,
        max_seq_len=512,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=2,
    )
    return chats("mpt", 16, MptForCausalLM, config)


def granite() -> Model:
    """Build Granite: multipliers everywhere."""
    config = GraniteConfig(
        **SMALL,
        attention_multiplier=0.3,
        embedding_multiplier=2.0,
        residual_multiplier=0.7,
        logits_scaling=0.5,
    )
    return chats("granite", 17, GraniteForCausalLM, config)


def smollm3() -> Model:
    """Build SmolLM3: layers without positions."""
    config = SmolLM3Config(**{**SMALL, "num_hidden_layers": 4}, no_rope_layer_interval=2)
    return chats("smollm3", 18, SmolLM3ForCausalLM, config)


def olmo2() -> Model:
    """Build OLMo 2: norms after instead of before."""
    return chats("olmo2", 19, Olmo2ForCausalLM, Olmo2Config(**SMALL))


def cohere() -> Model:
    """Build Cohere: interleaved rotation, scaled logits."""
    return chats("cohere", 20, CohereForCausalLM, CohereConfig(**SMALL, logit_scale=0.5))


def stablelm() -> Model:
    """Build StableLM: layer norms, positions in a quarter of each head."""
    return chats("stablelm", 21, StableLmForCausalLM, StableLmConfig(**SMALL))


def gpt_oss() -> Model:
    """Build gpt-oss: attention sinks, experts, windows in every other layer."""
    rope = {"rope_type": "default", "rope_theta": 1e4}
    config = GptOssConfig(**MIXED, rope_parameters=rope, num_local_experts=4, num_experts_per_tok=2)
    return chats("gpt_oss", 22, GptOssForCausalLM, config)


def llama4() -> Model:
    """Build Llama 4, text: attention in chunks, and layers without positions whose queries grow with their distance."""
    config = Llama4TextConfig(
        **{**MIXED, "layer_types": ["chunked_attention", "full_attention"] * 2},
        intermediate_size_mlp=128,
        num_local_experts=2,
        attention_chunk_size=WINDOW,
        no_rope_layers=[1, 0, 1, 0],
        floor_scale=8,
        attn_scale=0.5,
    )
    return chats("llama4", 23, Llama4ForCausalLM, config)


def qwen2_moe() -> Model:
    """Build Qwen2-MoE with windows in every other layer, which its attention function does not receive."""
    config = Qwen2MoeConfig(
        **SMALL,
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    )
    return chats("qwen2_moe", 24, Qwen2MoeForCausalLM, config)


def mixtral() -> Model:
    """Build Mixtral: experts, whose weights add up to one."""
    config = MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2)
    return chats("mixtral", 41, MixtralForCausalLM, config)


def qwen3_moe() -> Model:
    """Build Qwen3-MoE: normalized queries and keys, experts in every other layer, whose weights do not add up to one."""
    config = Qwen3MoeConfig(
        **{**SMALL, "num_hidden_layers": 4},
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        norm_topk_prob=False,
        mlp_only_layers=[0, 2],
    )
    return chats("qwen3_moe", 42, Qwen3MoeForCausalLM, config)
