"""Small vision-language models of real `transformers` configurations, with processors that need no torchvision."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from tests.support.tiny.small import SMALL, mute
from tests.support.tiny.tokens import CHATML, SMOLVLM, VICUNA, chatml, tokenizer_of
from ts_stateful.language.network.load import Model, build_model

_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
    "initializer_range": 0.2,
}


def llava() -> Model:
    """Build LLaVA: CLIP vision, Llama text, 16 tokens an image."""
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
        vision_config=CLIPVisionConfig(**_TOWER),
        text_config=LlamaConfig(**{**SMALL, "eos_token_id": 1}),
        image_token_id=2,
        vision_feature_layer=-1,
    )
    network = LlavaForConditionalGeneration(config).eval()
    network.generation_config.eos_token_id = 1
    mute(network, 2)
    images = CLIPImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False)
    processor = LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=VICUNA,
    )
    return build_model("llava", network, processor)


class _QwenVLProcessorPil:
    """Processing as by Qwen's models, without their video half, which needs torchvision."""

    image_token = "<|image_pad|>"
    chat_template = CHATML

    def __init__(self, tokenizer: PreTrainedTokenizerFast, patch_size: int) -> None:
        self.tokenizer = tokenizer
        pixels = (2 * patch_size) ** 2  # of one token
        self.image_processor = Qwen2VLImageProcessorPil(
            size={"shortest_edge": 6 * pixels, "longest_edge": 16 * pixels}, patch_size=patch_size
        )

    def __call__(self, *, text: list[str], images: Any, **kwargs: Any) -> dict[str, Any]:
        made = self.image_processor(images, return_tensors="pt")
        (grid,) = made["image_grid_thw"]
        count = int(grid.prod()) // self.image_processor.merge_size**2
        expanded = text[0].replace(self.image_token, self.image_token * count)
        ids = self.tokenizer(expanded, add_special_tokens=False, return_tensors="pt")["input_ids"]
        return {"input_ids": ids, **made}

    def to_json_string(self) -> Any:
        return self.image_processor.to_json_string()

    def apply_chat_template(self, messages: Any, **kwargs: Any) -> Any:
        return self.tokenizer.apply_chat_template(
            messages, chat_template=self.chat_template, **kwargs
        )


def _qwen_vl(name: str, seed: int, network: Any, config: Any, vision: dict[str, Any]) -> Model:
    """Build a model with M-RoPE positions and images of any size."""
    torch.manual_seed(seed)
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}
    qwen = network(
        config(
            text_config={**SMALL, "rope_parameters": rope},
            vision_config={
                "depth": 2,
                "num_heads": 2,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
                "initializer_range": 0.2,
                **vision,
            },
            vision_start_token_id=3,
            vision_end_token_id=4,
            image_token_id=5,
            video_token_id=6,
        )
    )
    qwen.generation_config.eos_token_id = 2
    mute(qwen, 5, 6)
    tokenizer = chatml("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    return build_model(name, qwen.eval(), _QwenVLProcessorPil(tokenizer, vision["patch_size"]))


def qwen2_vl() -> Model:
    """Build Qwen2-VL."""
    vision = {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2, "patch_size": 14}
    return _qwen_vl("qwen2_vl", 5, Qwen2VLForConditionalGeneration, Qwen2VLConfig, vision)


def qwen2_5_vl() -> Model:
    """Build Qwen2.5-VL: a vision tower with windows."""
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "out_hidden_size": 64,
        "patch_size": 14,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    }
    return _qwen_vl("qwen2_5_vl", 25, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLConfig, vision)


def qwen3_vl() -> Model:
    """Build Qwen3-VL: feature maps of several depths are added in the first layers."""
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "out_hidden_size": 64,
        "patch_size": 16,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    }
    return _qwen_vl("qwen3_vl", 26, Qwen3VLForConditionalGeneration, Qwen3VLConfig, vision)


def _tiled(name: str, seed: int, network: Any, config: Any, images: Any) -> Model:
    """Build a model that cuts an image into tiles of 32 pixels, 4 tokens each, and also reads it as a whole."""
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
            vision_config=dict(_TOWER),
            text_config=LlamaConfig(**SMALL),
            image_token_id=4,
            scale_factor=2,
            tie_word_embeddings=False,
        )
    )
    tiled.generation_config.eos_token_id = 2
    mute(tiled, 4)
    processor = Idefics3Processor(
        image_processor=images(size={"longest_edge": 64}, max_image_size={"longest_edge": 32}),
        tokenizer=tokenizer,
        image_seq_len=4,
        chat_template=SMOLVLM,
    )
    return build_model(name, tiled.eval(), processor)


def idefics3() -> Model:
    """Build Idefics3."""
    images = Idefics3ImageProcessorPil
    return _tiled("idefics3", 27, Idefics3ForConditionalGeneration, Idefics3Config, images)


def smolvlm() -> Model:
    """Build SmolVLM, with the processor that it was made from: its own needs torchvision for videos."""
    images = SmolVLMImageProcessorPil
    return _tiled("smolvlm", 28, SmolVLMForConditionalGeneration, SmolVLMConfig, images)
