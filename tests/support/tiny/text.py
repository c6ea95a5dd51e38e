"""Small language models of real `transformers` configurations, each with what makes its architecture special.

Windows are much shorter than the conversations of the tests, and layers alternate where an architecture mixes kinds.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MptConfig,
    MptForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

from tests.support.tiny.small import SMALL
from tests.support.tiny.tokens import CHATML, chatml, tokenizer_of
from ts_stateful.engine.model import Model, build_model

WINDOW = 12
_MIXED: dict[str, Any] = {
    **SMALL,
    "head_dim": 16,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": WINDOW,
}


def _chats(name: str, seed: int, network: Any, config: Any, template: str = CHATML) -> Model:
    torch.manual_seed(seed)
    return build_model(name, network(config).eval(), chatml(template=template))


def llama(template: str = CHATML) -> Model:
    """Llama with grouped heads and ChatML."""
    return _chats("llama", 1, LlamaForCausalLM, LlamaConfig(**SMALL), template)


def qwen2() -> Model:
    """Qwen2: biases on queries, keys and values."""
    return _chats("qwen2", 2, Qwen2ForCausalLM, Qwen2Config(**SMALL))


def qwen3() -> Model:
    """Qwen3: queries and keys are normalized, heads wider than the hidden size would make them."""
    return _chats("qwen3", 6, Qwen3ForCausalLM, Qwen3Config(**SMALL, head_dim=32))


def mistral() -> Model:
    """Mistral: every layer sees a window."""
    config = MistralConfig(**SMALL, sliding_window=WINDOW)
    return _chats("mistral", 7, MistralForCausalLM, config)


def gemma2() -> Model:
    """Gemma 2: soft-capped attention and logits, windows in every other layer."""
    config = Gemma2Config(
        **_MIXED,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=10.0,
    )
    return _chats("gemma2", 8, Gemma2ForCausalLM, config)


def gemma3() -> Model:
    """Gemma 3, text: windows in every other layer, which have positions of their own."""
    config = Gemma3TextConfig(
        **_MIXED,
        query_pre_attn_scalar=16,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    )
    return _chats("gemma3", 9, Gemma3ForCausalLM, config)


def gpt2() -> Model:
    """GPT-2: learned positions, no chat template."""
    torch.manual_seed(3)
    config = GPT2Config(
        vocab_size=512,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=512,
        initializer_range=0.2,
        eos_token_id=0,
        bos_token_id=0,
    )
    tokenizer = tokenizer_of("<|endoftext|>", eos_token="<|endoftext|>", bos_token="<|endoftext|>")
    return build_model("gpt2", GPT2LMHeadModel(config).eval(), tokenizer)


def phi3() -> Model:
    """Phi-3: packed projections, rotation of a part of each head, a window."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    config = Phi3Config(**SMALL, sliding_window=2 * WINDOW, rope_parameters=rope)
    return _chats("phi3", 10, Phi3ForCausalLM, config)


def gpt_neox() -> Model:
    """GPT-NeoX, Pythia: attention and feed-forward side by side, positions in a quarter of each head."""
    small = {name: value for name, value in SMALL.items() if name != "num_key_value_heads"}
    return _chats("gpt_neox", 11, GPTNeoXForCausalLM, GPTNeoXConfig(**small))


def opt() -> Model:
    """OPT: learned positions with an offset of two."""
    config = OPTConfig(
        **{**SMALL, "max_position_embeddings": 512},
        ffn_dim=128,
        word_embed_proj_dim=64,
        init_std=0.2,
    )
    return _chats("opt", 12, OPTForCausalLM, config)


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
    return _chats(name, seed, FalconForCausalLM, falcon)


def falcon() -> Model:
    """Falcon: one key head, an attention outside of the library's interface."""
    return _falcon("falcon", 13, multi_query=True)


def falcon_alibi() -> Model:
    """Falcon as RefinedWeb-1B has it: biases by distance, which stock code makes from the attention mask."""
    return _falcon(
        "falcon_alibi", 14, alibi=True, multi_query=False, bias=True, parallel_attn=False
    )


def bloom() -> Model:
    """BLOOM: biases by distance, no positions."""
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
    return _chats("bloom", 15, BloomForCausalLM, config)


def mpt() -> Model:
    """MPT: biases by distance, no positions, a length of its own name."""
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
    return _chats("mpt", 16, MptForCausalLM, config)


def granite() -> Model:
    """Granite: multipliers everywhere."""
    config = GraniteConfig(
        **SMALL,
        attention_multiplier=0.3,
        embedding_multiplier=2.0,
        residual_multiplier=0.7,
        logits_scaling=0.5,
    )
    return _chats("granite", 17, GraniteForCausalLM, config)


def smollm3() -> Model:
    """SmolLM3: layers without positions."""
    config = SmolLM3Config(**{**SMALL, "num_hidden_layers": 4}, no_rope_layer_interval=2)
    return _chats("smollm3", 18, SmolLM3ForCausalLM, config)


def olmo2() -> Model:
    """OLMo 2: norms behind instead of before."""
    return _chats("olmo2", 19, Olmo2ForCausalLM, Olmo2Config(**SMALL))


def cohere() -> Model:
    """Cohere: interleaved rotation, scaled logits."""
    return _chats("cohere", 20, CohereForCausalLM, CohereConfig(**SMALL, logit_scale=0.5))


def stablelm() -> Model:
    """StableLM: layer norms, positions in a quarter of each head."""
    return _chats("stablelm", 21, StableLmForCausalLM, StableLmConfig(**SMALL))


def gpt_oss() -> Model:
    """gpt-oss: attention sinks, experts, windows in every other layer."""
    rope = {"rope_type": "default", "rope_theta": 1e4}
    config = GptOssConfig(
        **_MIXED, rope_parameters=rope, num_local_experts=4, num_experts_per_tok=2
    )
    return _chats("gpt_oss", 22, GptOssForCausalLM, config)


def llama4() -> Model:
    """Llama 4, text: attention in chunks, and layers without positions whose queries grow with their distance."""
    config = Llama4TextConfig(
        **{**_MIXED, "layer_types": ["chunked_attention", "full_attention"] * 2},
        intermediate_size_mlp=128,
        num_local_experts=2,
        attention_chunk_size=WINDOW,
        no_rope_layers=[1, 0, 1, 0],
        floor_scale=8,
        attn_scale=0.5,
    )
    return _chats("llama4", 23, Llama4ForCausalLM, config)


def qwen2_moe() -> Model:
    """Qwen2-MoE with windows in every other layer, of which its attention function is not told."""
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
    return _chats("qwen2_moe", 24, Qwen2MoeForCausalLM, config)
