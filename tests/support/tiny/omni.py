"""Small models that see and hear, of real `transformers` configurations, in the layout of their checkpoints on the hub."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen3OmniMoeThinkerConfig,
    Qwen3OmniMoeThinkerForConditionalGeneration,
)

from tests.support.tiny.merging import MERGED_TOWER, MROPE, merging_files
from tests.support.tiny.published import Checkpoint, loaded, write
from tests.support.tiny.small import SMALL, mute
from tests.support.tiny.tokens import chatml
from ts_stateful.language.network.load import Model

_MEL_BINS, _SECONDS = 16, 6  # of a clip that is read whole
_TOKENS = {
    "audio_bos_token": "<|audio_bos|>",
    "audio_token": "<|AUDIO|>",
    "audio_eos_token": "<|audio_eos|>",
    "vision_bos_token": "<|vision_bos|>",
    "image_token": "<|IMAGE|>",
    "vision_eos_token": "<|vision_eos|>",
    "video_token": "<|VIDEO|>",
}
_HEARING = {
    "num_mel_bins": _MEL_BINS,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "d_model": 32,
    "max_source_positions": 1500,
    "output_dim": 64,
}
_IDS = {
    "audio_start_token_id": 3,
    "audio_end_token_id": 5,
    "vision_start_token_id": 6,
    "vision_end_token_id": 8,
}
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% elif c.type == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def qwen2_5_omni() -> Model:
    """Build Qwen2.5-Omni, which sees and hears; its talker is left out."""
    return loaded(_qwen2_5_omni)


def qwen3_omni() -> Model:
    """Build Qwen3-Omni, which sees and hears: experts, and feature maps of several depths; its talker is left out."""
    return loaded(_qwen3_omni)


def thinker(folder: Path) -> Path:
    """Write the checkpoint of the thinker of `qwen2_5_omni` alone."""
    return write(replace(_qwen2_5_omni(), rearrange=lambda _folder: None), folder)


def _files(processor: str, patch_size: int) -> dict[str, dict[str, Any]]:
    files = merging_files(processor, "Qwen2VLImageProcessor", patch_size)
    hearing = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": _MEL_BINS,
        "chunk_length": _SECONDS,
        "sampling_rate": 16_000,
    }
    files["preprocessor_config.json"] |= hearing
    return files


def _checkpoint(
    seed: int, network: Any, config: Any, processor: str, patch_size: int
) -> Checkpoint:
    torch.manual_seed(seed)
    thinker = network(config).eval()
    thinker.generation_config.eos_token_id = 2
    mute(thinker, *range(3, 10))
    tokenizer = chatml(*_TOKENS.values(), template=_TEMPLATE, extra_special_tokens=_TOKENS)
    return Checkpoint(thinker, tokenizer, _files(processor, patch_size), _add_talker)


def _qwen2_5_omni() -> Checkpoint:
    vision = {**MERGED_TOWER, "patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1]}
    config = Qwen2_5OmniThinkerConfig(
        text_config={**SMALL, "rope_parameters": {**MROPE}},
        vision_config=vision,
        audio_config={**_HEARING, "n_window": 20},
        audio_token_index=4,
        image_token_index=7,
        video_token_index=9,
        **_IDS,
    )
    network = Qwen2_5OmniThinkerForConditionalGeneration
    return _checkpoint(74, network, config, "Qwen2_5OmniProcessor", 14)


def _qwen3_omni() -> Checkpoint:
    vision = {
        **MERGED_TOWER,
        "patch_size": 16,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    }
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 16,
    }
    config = Qwen3OmniMoeThinkerConfig(
        text_config={**SMALL, **experts, "rope_parameters": {**MROPE}},
        vision_config=vision,
        audio_config={**_HEARING, "downsample_hidden_size": 8},
        audio_token_id=4,
        image_token_id=7,
        video_token_id=9,
        **_IDS,
    )
    network = Qwen3OmniMoeThinkerForConditionalGeneration
    return _checkpoint(75, network, config, "Qwen3OmniMoeProcessor", 16)


def _add_talker(folder: Path) -> None:
    """Make the thinker's checkpoint a part of a whole one, as on the hub."""
    thinker = json.loads((folder / "config.json").read_text())
    whole = {
        "model_type": thinker["model_type"].removesuffix("_thinker"),
        "architectures": [thinker["architectures"][0].replace("Thinker", "")],
        "thinker_config": thinker,
    }
    (folder / "config.json").write_text(json.dumps(whole))
    weights = load_file(folder / "model.safetensors")
    named = {f"thinker.{name}": tensor for name, tensor in weights.items()}
    others = {f"{part}.weight": torch.ones(2) for part in ("talker.codec_head", "token2wav.out")}
    save_file({**named, **others}, folder / "model.safetensors", metadata={"format": "pt"})
