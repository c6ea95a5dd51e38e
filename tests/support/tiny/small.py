"""Common parts of the small models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ts_stateful.language.network.load import Model

# These models are too small to benefit from more threads, and tests share the machine.
torch.set_num_threads(1)

SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,  # random, but decisive: argmax needs clear winners
    "tie_word_embeddings": False,  # or every token would be followed by itself
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 2,
}


def mute(network: Any, *token_ids: int) -> None:
    """Keep a random model from generating image tokens, which stock `generate` cannot handle in the next turn."""
    with torch.no_grad():
        network.get_output_embeddings().weight[list(token_ids)] = 0


def save(model: Model, folder: Path) -> Path:
    """Write a model as an ordinary checkpoint folder."""
    model.network.save_pretrained(folder)
    owner = model.text._owner
    owner.save_pretrained(folder)
    return folder
