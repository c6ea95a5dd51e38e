"""Small language models of real `transformers` configurations, each with the features of its architecture.

Windows are much shorter than the conversations of the tests, and layers alternate where an architecture mixes kinds.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.support.tiny.releases import since
from tests.support.tiny.small import SMALL
from tests.support.tiny.tokens import CHATML, chatml, tokenizer_of
from ts_stateful.language.network.load import Model, build_model

WINDOW = 12
MIXED: dict[str, Any] = {
    **SMALL,
    "head_dim": 16,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": WINDOW,
}


def chats(name: str, seed: int, network: Any, config: Any, template: str = CHATML) -> Model:
    """Build a model of this configuration that uses ChatML; weights depend on `seed`."""
    torch.manual_seed(seed)
    return build_model(name, network(config).eval(), chatml(template=template))


def llama(template: str = CHATML) -> Model:
    """Build Llama with grouped heads and ChatML."""
    return chats("llama", 1, LlamaForCausalLM, LlamaConfig(**SMALL), template)


def qwen2() -> Model:
    """Build Qwen2: biases on queries, keys and values."""
    return chats("qwen2", 2, Qwen2ForCausalLM, Qwen2Config(**SMALL))


def qwen3() -> Model:
    """Build Qwen3: normalized queries and keys, heads wider than the hidden size would make them."""
    return chats("qwen3", 6, Qwen3ForCausalLM, Qwen3Config(**SMALL, head_dim=32))


def mistral() -> Model:
    """Build Mistral: every layer sees a window."""
    config = MistralConfig(**SMALL, sliding_window=WINDOW)
    return chats("mistral", 7, MistralForCausalLM, config)


def gemma2() -> Model:
    """Build Gemma 2: soft-capped attention and logits, windows in every other layer."""
    since("5.23", "stock attention ignores its soft caps")
    config = Gemma2Config(
        **MIXED,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=10.0,
    )
    return chats("gemma2", 8, Gemma2ForCausalLM, config)


def gemma3() -> Model:
    """Build Gemma 3, text: windows in every other layer, which have their own positions."""
    config = Gemma3TextConfig(
        **MIXED,
        query_pre_attn_scalar=16,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    )
    return chats("gemma3", 9, Gemma3ForCausalLM, config)


def gpt2() -> Model:
    """Build GPT-2: learned positions, no chat template."""
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
    """Build Phi-3: packed projections, rotation of a part of each head, a window."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    config = Phi3Config(**SMALL, sliding_window=2 * WINDOW, rope_parameters=rope)
    return chats("phi3", 10, Phi3ForCausalLM, config)
