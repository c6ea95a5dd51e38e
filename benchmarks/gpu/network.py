"""The model that is measured on a GPU: LLaVA-1.5-7B's configuration with random weights, made where it runs.

The vocabulary is that of `benchmarks.model`, one word per token. The output layer's other rows are zero, so every generated
token is one of its words. A second, tiny size shows on any machine that the benchmark runs.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from benchmarks.model import IMAGE, NUM_SPECIAL, TEMPLATE, build_tokenizer, words

__all__ = ["FULL", "TINY", "Size", "build", "text_part"]


class Size(NamedTuple):
    """A model, and the amount of work. `history` and `num_new` are tokens, `copied` bytes."""

    text: dict[str, int]
    vision: dict[str, int]
    rows: tuple[int, ...]
    history: int
    num_new: int
    steps: int
    rounds: int
    copied: int


# https://huggingface.co/llava-hf/llava-1.5-7b-hf/blob/main/config.json
FULL: Final = Size(
    text={
        "vocab_size": 32064,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
    vision={
        "image_size": 336,
        "patch_size": 14,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "projection_dim": 768,
    },
    rows=(1, 8, 32),
    history=1000,
    num_new=20,
    steps=64,
    rounds=5,
    copied=2**31,
)
TINY: Final = Size(
    text={
        "vocab_size": 8064,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    vision={
        "image_size": 56,
        "patch_size": 14,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "projection_dim": 32,
    },
    rows=(2,),
    history=80,
    num_new=20,
    steps=6,
    rounds=2,
    copied=2**22,
)


def build(
    size: Size, device: torch.device, dtype: torch.dtype
) -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """Return the network, on its device, and its processor."""
    tokenizer = build_tokenizer()
    vision = CLIPVisionConfig(**size.vision)
    tokens: dict[str, Any] = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    config = LlavaConfig(
        vision_config=vision,
        text_config=LlamaConfig(**size.text, max_position_embeddings=4096, **tokens),
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=(vision.image_size // vision.patch_size) ** 2,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        dtype=dtype,
        **tokens,
    )
    torch.manual_seed(0)
    with torch.device(device):
        network = LlavaForConditionalGeneration._from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        network.lm_head.weight[:NUM_SPECIAL] = 0
        network.lm_head.weight[NUM_SPECIAL + len(words()) :] = 0
    network.generation_config = GenerationConfig(do_sample=False, **tokens)
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessorPil(
            size={"shortest_edge": vision.image_size},
            crop_size={"height": vision.image_size, "width": vision.image_size},
        ),
        tokenizer=tokenizer,
        patch_size=vision.patch_size,
        num_additional_image_tokens=1,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
    )
    return network, processor


def text_part(network: LlavaForConditionalGeneration) -> LlamaForCausalLM:
    """Return a language model on the same weights, with torch's attention; do not use the whole model beside it."""
    config = network.config.get_text_config(decoder=True)
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        text = LlamaForCausalLM._from_config(config, dtype=network.dtype)
    text.model = network.model.language_model
    text.lm_head = network.lm_head
    text.generation_config = network.generation_config
    return text.eval()
