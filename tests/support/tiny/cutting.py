"""Small vision-language models whose processors cut images with torchvision, in the hub's layout."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Cohere2VisionConfig,
    Cohere2VisionForConditionalGeneration,
    Lfm2VlConfig,
    Lfm2VlForConditionalGeneration,
    Llama4Config,
    Llama4ForConditionalGeneration,
)

from tests.support.tiny.published import Checkpoint, loaded
from tests.support.tiny.seeing import TOWER
from tests.support.tiny.small import SMALL, mute
from tests.support.tiny.text import MIXED, WINDOW
from tests.support.tiny.tokens import CHATML, chatml, tokenizer_of
from ts_stateful.language.network.load import Model

__all__ = ["cohere2_vision", "lfm2_vl", "llama4_vision"]

# Llama 4's own, without tools.
_LLAMA4 = (
    "{{ bos_token }}{% for m in messages %}<|header_start|>{{ m.role }}<|header_end|>\n\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}<|image|>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}"
    "<|eot|>{% endfor %}{% if add_generation_prompt %}<|header_start|>assistant<|header_end|>\n\n{% endif %}"
)
_COHERE = (
    "{{ bos_token }}{% for m in messages %}<|START_OF_TURN_TOKEN|>{{ m.role | upper }}:"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}<|IMG_PATCH|>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}"
    "<|END_OF_TURN_TOKEN|>{% endfor %}{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|>CHATBOT:{% endif %}"
)
_SQUARE = {"height": 32, "width": 32}


def llama4_vision() -> Model:
    """Build Llama 4: tiles and a whole of every image, whose features every pass projects."""
    return loaded(_llama4, needs="torchvision")


def lfm2_vl() -> Model:
    """Build LFM2-VL: tiles of large images, short convolutions beside attention."""
    return loaded(_lfm2_vl, needs="torchvision")


def cohere2_vision() -> Model:
    """Build Cohere2 Vision: tiles with a mark after each, windows and positions in some of the layers."""
    return loaded(_cohere2, needs="torchvision")


def _llama4() -> Checkpoint:
    torch.manual_seed(80)
    special = (
        "<|begin_of_text|>",
        "<|header_start|>",
        "<|eot|>",
        "<|header_end|>",
        "<|image_start|>",
        "<|image_end|>",
        "<|image|>",
        "<|patch|>",
        "<|tile_x_separator|>",
        "<|tile_y_separator|>",
        "<|finetune_right_pad|>",
    )
    tokenizer = tokenizer_of(
        *special,
        template=_LLAMA4,
        bos_token=special[0],
        eos_token=special[2],
        pad_token=special[-1],
    )
    network = Llama4ForConditionalGeneration(
        Llama4Config(
            text_config={
                **MIXED,
                "layer_types": ["chunked_attention", "full_attention"] * 2,
                "intermediate_size_mlp": 128,
                "num_local_experts": 2,
                "attention_chunk_size": WINDOW,
                "no_rope_layers": [1, 0, 1, 0],
                "floor_scale": 8,
                "attn_scale": 0.5,
            },
            vision_config={
                **TOWER,
                "intermediate_size": 128,
                "projector_input_dim": 48,
                "projector_output_dim": 48,
                "vision_output_dim": 48,
            },
            boi_token_index=4,
            eoi_token_index=5,
            image_token_index=7,
        )
    ).eval()
    network.generation_config.eos_token_id = 2
    mute(network, 6, 7)
    files: dict[str, dict[str, Any]] = {
        "preprocessor_config.json": {
            "image_processor_type": "Llama4ImageProcessorFast",
            "processor_class": "Llama4Processor",
            "max_patches": 4,
            "size": _SQUARE,
        },
        "processor_config.json": {
            "processor_class": "Llama4Processor",
            "patch_size": 8,
            "pixel_shuffle_ratio": 0.5,
        },
    }
    return Checkpoint(network, tokenizer, files)


def _lfm2_vl() -> Checkpoint:
    torch.manual_seed(81)
    marks = ("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>")
    tiles = (f"<|img_row_{row}_col_{column}|>" for row in range(1, 5) for column in range(1, 5))
    template = CHATML.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")
    tokenizer = chatml(
        "<image>", *marks, *tiles, template="{{ bos_token }}" + template, bos_token="<|endoftext|>"
    )
    network = Lfm2VlForConditionalGeneration(
        Lfm2VlConfig(
            text_config={
                **SMALL,
                "model_type": "lfm2",
                "layer_types": ["conv", "full_attention"],
                "block_auto_adjust_ff_dim": False,
            },
            vision_config={**TOWER, "model_type": "siglip2_vision_model", "num_patches": 16},
            image_token_id=3,
            projector_hidden_size=64,
            tie_word_embeddings=False,
        )
    ).eval()
    network.generation_config.eos_token_id = 2
    mute(network, 3)
    files: dict[str, dict[str, Any]] = {
        "preprocessor_config.json": {
            "image_processor_type": "Lfm2VlImageProcessorFast",
            "processor_class": "Lfm2VlProcessor",
            "encoder_patch_size": 8,
            "tile_size": 32,
            "min_tiles": 2,
            "max_tiles": 4,
            "min_image_tokens": 2,
            "max_image_tokens": 6,
        },
        "processor_config.json": {"processor_class": "Lfm2VlProcessor"},
    }
    return Checkpoint(network, tokenizer, files)


def _cohere2() -> Checkpoint:
    torch.manual_seed(82)
    names = {
        "boi_token": "<|START_OF_IMG|>",
        "eoi_token": "<|END_OF_IMG|>",
        "image_token": "<|IMG_PATCH|>",
        "img_line_break_token": "<|IMG_LINE_BREAK|>",
    }
    tokenizer = tokenizer_of(
        "<PAD>",
        "<BOS_TOKEN>",
        "<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|>",
        *names.values(),
        template=_COHERE,
        bos_token="<BOS_TOKEN>",
        eos_token="<|END_OF_TURN_TOKEN|>",
        pad_token="<PAD>",
        **names,
    )
    network = Cohere2VisionForConditionalGeneration(
        Cohere2VisionConfig(
            text_config={
                **SMALL,
                "model_type": "cohere2",
                "layer_types": ["sliding_attention", "full_attention"],
                "sliding_window": WINDOW,
                "logit_scale": 0.5,
            },
            vision_config={**TOWER, "model_type": "siglip_vision_model", "vision_use_head": False},
            image_token_id=6,
            alignment_intermediate_size=128,
            tie_word_embeddings=False,
        )
    ).eval()
    network.generation_config.eos_token_id = 2
    mute(network, 6)
    files: dict[str, dict[str, Any]] = {
        "preprocessor_config.json": {
            "image_processor_type": "Cohere2VisionImageProcessorFast",
            "processor_class": "Cohere2VisionProcessor",
            "max_patches": 4,
            "patch_size": 2,
            "size": _SQUARE,
        },
        "processor_config.json": {"processor_class": "Cohere2VisionProcessor"},
    }
    return Checkpoint(network, tokenizer, files)
