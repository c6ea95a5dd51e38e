"""Small vision-language models of real `transformers` configurations, in the layout of their checkpoints on the hub."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    CLIPVisionConfig,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    PixtralVisionConfig,
    Qwen2Config,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from tests.support.tiny.published import Checkpoint, loaded
from tests.support.tiny.small import SMALL, mute
from tests.support.tiny.tokens import CHATML, SMOLVLM, VICUNA, chatml, tokenizer_of
from ts_stateful.language.network.load import Model

TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
    "initializer_range": 0.2,
}
_SQUARE = {"height": 32, "width": 32}


def llava() -> Model:
    """Build LLaVA: CLIP vision, Llama text, 16 tokens an image."""
    return loaded(_llava)


def idefics3() -> Model:
    """Build Idefics3, which cuts an image into tiles and also reads it as a whole."""
    return loaded(_idefics3)


def smolvlm() -> Model:
    """Build SmolVLM, tiled as Idefics3."""
    return loaded(_smolvlm)


def internvl() -> Model:
    """Build InternVL: an image may be several tiles, and its tokens stand between two marks."""
    return loaded(_internvl)


def pixtral() -> Model:
    """Build Pixtral: images of any size, with a token after each row of patches."""
    return loaded(_pixtral)


def mistral3() -> Model:
    """Build Mistral Small 3: Pixtral's tower, patches merged by four."""
    return loaded(_mistral3)


def llava_onevision() -> Model:
    """Build LLaVA-OneVision with tiles of every image, because `handler.imageTiling` is `each`."""
    return loaded(_llava_onevision, image_tiling="each")


def llava_onevision_untiled() -> Model:
    """Build LLaVA-OneVision with images that are never cut, because `handler.imageTiling` is `none`."""
    return loaded(_llava_onevision, image_tiling="none")


def _llava() -> Checkpoint:
    torch.manual_seed(4)
    tokenizer = tokenizer_of(
        "<s>",
        "</s>",
        "<image>",
        "<pad>",
        template=VICUNA,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        image_token="<image>",
    )
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**TOWER),
        text_config=LlamaConfig(**{**SMALL, "eos_token_id": 1}),
        image_token_id=2,
        vision_feature_layer=-1,
    )
    network = LlavaForConditionalGeneration(config).eval()
    network.generation_config.eos_token_id = 1
    mute(network, 2)
    files: dict[str, dict[str, Any]] = {
        "preprocessor_config.json": {
            "image_processor_type": "CLIPImageProcessor",
            "processor_class": "LlavaProcessor",
            "do_center_crop": False,
            "size": _SQUARE,
        },
        "processor_config.json": {
            "processor_class": "LlavaProcessor",
            "patch_size": 8,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    }
    return Checkpoint(network, tokenizer, files)


# Models that cut an image into tiles of 32 pixels, 4 tokens each.


def _tiled(seed: int, network: Any, config: Any, name: str) -> Checkpoint:
    torch.manual_seed(seed)
    tokenizer = tokenizer_of(
        "<|endoftext|>",
        "<|im_start|>",
        "<end_of_utterance>",
        "<fake_token_around_image>",
        "<image>",
        "<global-img>",
        *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
        template=SMOLVLM,
        eos_token="<end_of_utterance>",
        pad_token="<|endoftext|>",
    )
    tiled = network(
        config(
            vision_config=dict(TOWER),
            text_config=LlamaConfig(**SMALL),
            image_token_id=4,
            scale_factor=2,
            tie_word_embeddings=False,
        )
    ).eval()
    tiled.generation_config.eos_token_id = 2
    mute(tiled, 4)
    files: dict[str, dict[str, Any]] = {
        "preprocessor_config.json": {
            "image_processor_type": f"{name}ImageProcessor",
            "processor_class": f"{name}Processor",
            "do_image_splitting": True,
            "max_image_size": {"longest_edge": 32},
            "size": {"longest_edge": 64},
        },
        "processor_config.json": {"image_seq_len": 4, "processor_class": f"{name}Processor"},
    }
    return Checkpoint(tiled, tokenizer, files)


def _idefics3() -> Checkpoint:
    return _tiled(27, Idefics3ForConditionalGeneration, Idefics3Config, "Idefics3")


def _smolvlm() -> Checkpoint:
    return _tiled(28, SmolVLMForConditionalGeneration, SmolVLMConfig, "SmolVLM")


def _internvl() -> Checkpoint:
    torch.manual_seed(30)
    network = InternVLForConditionalGeneration(
        InternVLConfig(
            vision_config={**TOWER, "image_size": [32, 32], "patch_size": [8, 8]},
            text_config=Qwen2Config(**SMALL),
            image_token_id=5,
            image_seq_length=4,
            tie_word_embeddings=False,
        )
    ).eval()
    network.generation_config.eos_token_id = 2
    mute(network, 5)
    marks = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    template = CHATML.replace("<|vision_start|><|image_pad|><|vision_end|>", "<IMG_CONTEXT>\n")
    tokenizer = chatml(*marks.values(), template=template, **marks)
    files: dict[str, dict[str, Any]] = {
        "preprocessor_config.json": {
            "image_processor_type": "GotOcr2ImageProcessorFast",
            "processor_class": "InternVLProcessor",
            "crop_to_patches": True,
            "min_patches": 1,
            "max_patches": 4,
            "size": _SQUARE,
        },
        "video_preprocessor_config.json": {
            "video_processor_type": "InternVLVideoProcessor",
            "processor_class": "InternVLProcessor",
            "size": _SQUARE,
        },
        "processor_config.json": {
            "image_seq_length": 4,
            "processor_class": "InternVLProcessor",
        },
    }
    return Checkpoint(network, tokenizer, files)


def _llava_onevision() -> Checkpoint:
    torch.manual_seed(45)
    grid = [[32, 32], [32, 64], [64, 32], [64, 64]]
    network = LlavaOnevisionForConditionalGeneration(
        LlavaOnevisionConfig(
            vision_config={"model_type": "siglip_vision_model", **TOWER, "vision_use_head": False},
            text_config=Qwen2Config(**SMALL),
            image_token_id=3,
            video_token_id=4,
            image_grid_pinpoints=grid,
            vision_aspect_ratio="anyres_max_9",
            tie_word_embeddings=False,
        )
    ).eval()
    network.generation_config.eos_token_id = 2
    mute(network, 3)
    template = CHATML.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>\n")
    tokenizer = chatml("<image>", "<video>", template=template)
    files: dict[str, dict[str, Any]] = {
        "preprocessor_config.json": {
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "processor_class": "LlavaOnevisionProcessor",
            "image_grid_pinpoints": grid,
            "size": _SQUARE,
        },
        "processor_config.json": {
            "num_image_tokens": 16,
            "processor_class": "LlavaOnevisionProcessor",
            "vision_aspect_ratio": "anyres_max_9",
            "vision_feature_select_strategy": "full",
        },
    }
    return Checkpoint(network, tokenizer, files)


# Models whose images keep their shape, with a token after each row of patches.
_MISTRAL = VICUNA.replace("<image>\n", "[IMG]")


def _in_rows(seed: int, network: Any, config: Any, merge: int) -> Checkpoint:
    torch.manual_seed(seed)
    tokenizer = tokenizer_of(
        "<s>",
        "</s>",
        "[IMG]",
        "<pad>",
        "[IMG_BREAK]",
        "[IMG_END]",
        template=_MISTRAL,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
    )
    tower = {**TOWER, "image_size": 64, "num_attention_heads": 1}
    extra: dict[str, Any] = {"spatial_merge_size": merge} if merge > 1 else {}
    rows = network(
        config(
            vision_config=PixtralVisionConfig(**tower),
            text_config=MistralConfig(**{**SMALL, "eos_token_id": 1}, sliding_window=None),
            image_token_index=2,
            vision_feature_layer=-1,
            tie_word_embeddings=False,
            **extra,
            **({} if extra else {"vision_feature_select_strategy": "full"}),
        )
    ).eval()
    rows.generation_config.eos_token_id = 1
    mute(rows, 2)
    files: dict[str, dict[str, Any]] = {
        "preprocessor_config.json": {
            "image_processor_type": "PixtralImageProcessor",
            "processor_class": "PixtralProcessor",
            "patch_size": {"height": 8, "width": 8},
            "size": {"longest_edge": 64},
        },
        "processor_config.json": {
            "processor_class": "PixtralProcessor",
            "image_token": "[IMG]",
            "image_break_token": "[IMG_BREAK]",
            "image_end_token": "[IMG_END]",
            "patch_size": 8,
            **extra,
        },
    }
    return Checkpoint(rows, tokenizer, files)


def _pixtral() -> Checkpoint:
    return _in_rows(31, LlavaForConditionalGeneration, LlavaConfig, 1)


def _mistral3() -> Checkpoint:
    return _in_rows(32, Mistral3ForConditionalGeneration, Mistral3Config, 2)
