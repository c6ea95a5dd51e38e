"""Vision-language checkpoints whose images cannot be served exactly, in the hub's layout."""

from __future__ import annotations

import torch
from transformers import (
    FuyuConfig,
    FuyuForCausalLM,
    Idefics2Config,
    Idefics2ForConditionalGeneration,
    MistralConfig,
    Ovis2Config,
    Ovis2ForConditionalGeneration,
    PersimmonConfig,
    Qwen2Config,
)

from tests.support.tiny.published import Checkpoint
from tests.support.tiny.seeing import TOWER
from tests.support.tiny.small import SMALL
from tests.support.tiny.tokens import CHATML, SMOLVLM, chatml, tokenizer_of

__all__ = ["fuyu", "idefics2", "ovis2"]


def idefics2() -> Checkpoint:
    """Make Idefics2, whose processor joins adjacent images and puts a blank after one."""
    torch.manual_seed(40)
    tokenizer = tokenizer_of(
        "<|endoftext|>",
        "<|im_start|>",
        "<end_of_utterance>",
        "<fake_token_around_image>",
        "<image>",
        template=SMOLVLM,
        eos_token="<end_of_utterance>",
        pad_token="<|endoftext|>",
    )
    config = Idefics2Config(
        vision_config=dict(TOWER),
        text_config=MistralConfig(**SMALL),
        perceiver_config={
            "hidden_size": 64,
            "resampler_n_latents": 4,
            "resampler_depth": 1,
            "resampler_n_heads": 2,
            "resampler_head_dim": 16,
            "num_key_value_heads": 1,
        },
        image_token_id=4,
    )
    files = {
        "preprocessor_config.json": {
            "image_processor_type": "Idefics2ImageProcessor",
            "processor_class": "Idefics2Processor",
            "do_image_splitting": False,
            "size": {"longest_edge": 32, "shortest_edge": 16},
        },
        "processor_config.json": {"image_seq_len": 4, "processor_class": "Idefics2Processor"},
    }
    return Checkpoint(Idefics2ForConditionalGeneration(config).eval(), tokenizer, files)


def ovis2() -> Checkpoint:
    """Make Ovis2, whose tower also gives the embeddings of the marks around an image."""
    torch.manual_seed(41)
    marks = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
    template = CHATML.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")
    tokenizer = chatml("<IMG_ATOM>", *marks, "<image>", template=template)
    config = Ovis2Config(
        vision_config={**TOWER, "vocab_size": 64, "hidden_stride": 2},
        text_config=Qwen2Config(**SMALL),
        image_token_id=3,
        visual_indicator_token_ids=[4, 5, 6, 7, 8],
        vocab_size=512,
        hidden_size=64,
        tie_word_embeddings=False,
    )
    files = {
        "preprocessor_config.json": {
            "image_processor_type": "Ovis2ImageProcessor",
            "processor_class": "Ovis2Processor",
            "size": {"height": 32, "width": 32},
            "min_patches": 1,
            "max_patches": 4,
        },
        "processor_config.json": {"image_seq_length": 4, "processor_class": "Ovis2Processor"},
    }
    return Checkpoint(Ovis2ForConditionalGeneration(config).eval(), tokenizer, files)


def fuyu() -> Checkpoint:
    """Make Fuyu, whose processor puts an image before the text without a token for it."""
    torch.manual_seed(42)
    tokenizer = tokenizer_of(
        "|ENDOFTEXT|",
        "|SPEAKER|",
        "|NEWLINE|",
        "<s>",
        "<0x04>",
        bos_token="<s>",
        eos_token="|ENDOFTEXT|",
        pad_token="|ENDOFTEXT|",
    )
    text = {**SMALL, "num_key_value_heads": 4}
    config = FuyuConfig(
        text_config=PersimmonConfig(**text).to_dict(),
        image_size=64,
        patch_size=8,
        image_token_id=1,
        **text,
    )
    files = {
        "preprocessor_config.json": {
            "image_processor_type": "FuyuImageProcessor",
            "processor_class": "FuyuProcessor",
            "size": {"height": 64, "width": 64},
            "patch_size": {"height": 8, "width": 8},
        },
    }
    return Checkpoint(FuyuForCausalLM(config).eval(), tokenizer, files)
