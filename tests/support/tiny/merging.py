"""Small models with M-RoPE positions, whose towers merge patches, in the layout of their checkpoints on the hub."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from tests.support.tiny.published import Checkpoint, loaded
from tests.support.tiny.small import SMALL, mute
from tests.support.tiny.tokens import CHATML, chatml
from ts_stateful.language.network.load import Model

MROPE = {
    "rope_type": "default",
    "mrope_section": [2, 3, 3],
    "rope_theta": 1e4,
}  # configurations add to it: give them a copy
_MERGING = {
    "depth": 2,
    "num_heads": 2,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "initializer_range": 0.2,
}
MERGED_TOWER = {
    **_MERGING,
    "hidden_size": 32,
    "intermediate_size": 64,
    "out_hidden_size": 64,
}
_DEEP_TOWER = {
    **MERGED_TOWER,
    "patch_size": 16,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 1],
}


def qwen2_vl() -> Model:
    """Build Qwen2-VL."""
    return loaded(_qwen2_vl)


def qwen2_5_vl() -> Model:
    """Build Qwen2.5-VL: a vision tower with windows."""
    return loaded(_qwen2_5_vl)


def qwen3_vl() -> Model:
    """Build Qwen3-VL: feature maps of several depths are added in the first layers."""
    return loaded(_qwen3_vl)


def qwen3_vl_moe() -> Model:
    """Build Qwen3-VL-MoE: experts, and feature maps of several depths as Qwen3-VL."""
    return loaded(_qwen3_vl_moe)


def qwen3_5_vision() -> Model:
    """Build Qwen3.5, which sees: recurrent states beside M-RoPE positions."""
    return loaded(_qwen3_5)


def glm4v() -> Model:
    """Build GLM-4.1V: M-RoPE as Qwen2.5-VL, a tower of its own."""
    return loaded(_glm4v)


def merging_files(processor: str, images: str, patch_size: int) -> dict[str, dict[str, Any]]:
    pixels = (2 * patch_size) ** 2  # of one token
    settings = {
        "processor_class": processor,
        "size": {"shortest_edge": 6 * pixels, "longest_edge": 16 * pixels},
        "patch_size": patch_size,
        "temporal_patch_size": 2,
        "merge_size": 2,
    }
    videos = images.replace("ImageProcessor", "VideoProcessor").removesuffix("Fast")
    return {
        "preprocessor_config.json": {**settings, "image_processor_type": images},
        "video_preprocessor_config.json": {**settings, "video_processor_type": videos},
    }


def _merging(
    seed: int,
    network: Any,
    config: Any,
    vision: dict[str, Any],
    processor: str,
    images: str,
    **text: Any,
) -> Checkpoint:
    torch.manual_seed(seed)
    merging = network(
        config(
            text_config={**SMALL, "rope_parameters": {**MROPE}, **text},
            vision_config=vision,
            vision_start_token_id=3,
            vision_end_token_id=4,
            image_token_id=5,
            video_token_id=6,
        )
    ).eval()
    merging.generation_config.eos_token_id = 2
    mute(merging, 5, 6)
    tokenizer = chatml("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    return Checkpoint(merging, tokenizer, merging_files(processor, images, vision["patch_size"]))


def _qwen2_vl() -> Checkpoint:
    vision = {**_MERGING, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2, "patch_size": 14}
    return _merging(
        5,
        Qwen2VLForConditionalGeneration,
        Qwen2VLConfig,
        vision,
        "Qwen2VLProcessor",
        "Qwen2VLImageProcessor",
    )


def _qwen2_5_vl() -> Checkpoint:
    vision = {**MERGED_TOWER, "patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1]}
    return _merging(
        25,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLConfig,
        vision,
        "Qwen2_5_VLProcessor",
        "Qwen2VLImageProcessor",
    )


def _qwen3_vl() -> Checkpoint:
    return _merging(
        26,
        Qwen3VLForConditionalGeneration,
        Qwen3VLConfig,
        _DEEP_TOWER,
        "Qwen3VLProcessor",
        "Qwen2VLImageProcessorFast",
    )


def _qwen3_vl_moe() -> Checkpoint:
    return _merging(
        62,
        Qwen3VLMoeForConditionalGeneration,
        Qwen3VLMoeConfig,
        _DEEP_TOWER,
        "Qwen3VLProcessor",
        "Qwen2VLImageProcessorFast",
        head_dim=16,
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=64,
    )


def _qwen3_5() -> Checkpoint:
    vision = {**MERGED_TOWER, "patch_size": 16, "num_position_embeddings": 64}
    return _merging(
        33,
        Qwen3_5ForConditionalGeneration,
        Qwen3_5Config,
        vision,
        "Qwen3VLProcessor",
        "Qwen2VLImageProcessorFast",
        layer_types=["linear_attention", "full_attention"],
        head_dim=16,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_conv_kernel_dim=4,
    )


def _glm4v() -> Checkpoint:
    torch.manual_seed(29)
    network = Glm4vForConditionalGeneration(
        Glm4vConfig(
            text_config={**SMALL, "rope_parameters": {**MROPE, "partial_rotary_factor": 1.0}},
            vision_config={**MERGED_TOWER, "patch_size": 14, "image_size": 56},
            image_start_token_id=3,
            image_end_token_id=4,
            video_start_token_id=6,
            video_end_token_id=7,
            image_token_id=5,
            video_token_id=8,
        )
    ).eval()
    network.generation_config.eos_token_id = 2
    mute(network, 5, 8)
    template = CHATML.replace("vision_start", "begin_of_image").replace(
        "vision_end", "end_of_image"
    )
    tokenizer = chatml(
        "<|begin_of_image|>",
        "<|end_of_image|>",
        "<|image|>",
        "<|begin_of_video|>",
        "<|end_of_video|>",
        "<|video|>",
        template=template.replace("image_pad", "image"),
    )
    files = merging_files("Glm4vProcessor", "Glm4vImageProcessor", 14)
    return Checkpoint(network, tokenizer, files)
