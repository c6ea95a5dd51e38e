"""Small language models that compute attention by methods of their own."""

from __future__ import annotations

from typing import Any

from transformers import (
    CodeGenConfig,
    CodeGenForCausalLM,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
)

from tests.support.tiny.text import WINDOW, chats
from ts_stateful.language.network.load import Model

_SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_GPT: dict[str, Any] = {
    **_SMALL,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "rotary_dim": 8,
}


def codegen() -> Model:
    """Build CodeGen: packed projections, rotation of a part of each head."""
    return chats("codegen", 37, CodeGenForCausalLM, CodeGenConfig(**_GPT))


def gptj() -> Model:
    """Build GPT-J: attention and feed-forward side by side, rotation of a part of each head."""
    return chats("gptj", 38, GPTJForCausalLM, GPTJConfig(**_GPT))


def gpt_neo() -> Model:
    """Build GPT-Neo: unscaled attention, windows in every other layer that its masks do not show."""
    config = GPTNeoConfig(
        **_SMALL,
        hidden_size=64,
        num_layers=4,
        num_heads=4,
        attention_types=[[["global", "local"], 2]],
        window_size=WINDOW,
        max_position_embeddings=512,
    )
    return chats("gpt_neo", 39, GPTNeoForCausalLM, config)
