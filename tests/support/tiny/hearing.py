"""Small models that hear, of real `transformers` configurations, in the layout of their checkpoints on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AudioFlamingo3Config,
    AudioFlamingo3ForConditionalGeneration,
    GlmAsrConfig,
    GlmAsrForConditionalGeneration,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    VoxtralConfig,
    VoxtralForConditionalGeneration,
)

from tests.support.tiny.published import Checkpoint, loaded
from tests.support.tiny.releases import since
from tests.support.tiny.small import SMALL, mute
from tests.support.tiny.tokens import chatml, tekken
from ts_stateful.language.network.load import Model

_MEL_BINS, _SECONDS = 16, 2  # of a clip that is read whole
_AUDIO, _AUDIO_ID = "<|AUDIO|>", 3
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>\n"
    "{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def qwen2_audio() -> Model:
    """Build Qwen2-Audio: Whisper's encoder, Qwen2 text, 25 tokens a second."""
    return loaded(_qwen2_audio)


def audio_flamingo3() -> Model:
    """Build Audio Flamingo 3, which cuts longer clips into windows."""
    return loaded(_audio_flamingo3)


def glm_asr() -> Model:
    """Build GLM-ASR: a rotary encoder, Llama text, 12.5 tokens a second."""
    return loaded(_glm_asr)


def voxtral() -> Model:
    """Build Voxtral: Whisper's encoder, Llama text, 12.5 tokens a second of windows of 30."""
    return loaded(_voxtral)


def _checkpoint(seed: int, network: Any, config: Any, processor: str) -> Checkpoint:
    torch.manual_seed(seed)
    tokenizer = chatml(_AUDIO, "<|audio_bos|>", "<|audio_eos|>", template=_TEMPLATE)
    made = network(config).eval()
    made.generation_config.eos_token_id = 2
    mute(made, _AUDIO_ID)
    files: dict[str, dict[str, Any]] = {
        "preprocessor_config.json": {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "processor_class": processor,
            "feature_size": _MEL_BINS,
            "chunk_length": _SECONDS,
            "sampling_rate": 16_000,
        },
        "processor_config.json": {"audio_token": _AUDIO, "processor_class": processor},
    }
    return Checkpoint(made, tokenizer, files)


def _tower(kind: str, **sizes: Any) -> dict[str, Any]:
    return {"model_type": kind, "num_mel_bins": _MEL_BINS, **sizes}


def _qwen2_audio() -> Checkpoint:
    tower = _tower(
        "qwen2_audio_encoder",
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=64,
        d_model=32,
        max_source_positions=50 * _SECONDS,
    )
    config = Qwen2AudioConfig(
        audio_config=tower,
        text_config={**SMALL, "model_type": "qwen2"},
        audio_token_index=_AUDIO_ID,
    )
    return _checkpoint(71, Qwen2AudioForConditionalGeneration, config, "Qwen2AudioProcessor")


def _audio_flamingo3() -> Checkpoint:
    tower = _tower(
        "audioflamingo3_encoder",
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_size=32,
        max_source_positions=50 * _SECONDS,
    )
    config = AudioFlamingo3Config(
        audio_config=tower,
        text_config={**SMALL, "model_type": "qwen2"},
        audio_token_id=_AUDIO_ID,
    )
    return _checkpoint(
        72, AudioFlamingo3ForConditionalGeneration, config, "AudioFlamingo3Processor"
    )


def _glm_asr() -> Checkpoint:
    tower = _tower(
        "glmasr_encoder",
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=128,
        hidden_size=32,
        max_position_embeddings=50 * _SECONDS,
        head_dim=16,
    )
    config = GlmAsrConfig(
        audio_config=tower,
        text_config={**SMALL, "model_type": "llama"},
        audio_token_id=_AUDIO_ID,
    )
    return _checkpoint(73, GlmAsrForConditionalGeneration, config, "GlmAsrProcessor")


def _voxtral() -> Checkpoint:
    """Make a checkpoint whose only tokenizer is `tekken.json`, and which has no template."""
    since("5.23", "its chat template is not read")
    seconds, audio_id = 30, 24  # the stock processor has both in its code
    tower = _tower(
        "voxtral_encoder",
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_size=32,
        intermediate_size=4 * 32,
        max_source_positions=50 * seconds,
    )
    text = {**SMALL, "model_type": "llama", "max_position_embeddings": 4096}
    config = VoxtralConfig(audio_config=tower, text_config=text, audio_token_id=audio_id)
    made = _checkpoint(74, VoxtralForConditionalGeneration, config, "VoxtralProcessor")
    mute(made.network, audio_id)
    extractor = {**made.files["preprocessor_config.json"], "chunk_length": seconds}
    files = {"preprocessor_config.json": extractor, "tekken.json": tekken(seconds, _MEL_BINS)}
    return Checkpoint(made.network, made.tokenizer, files, _only_tekken)


def _only_tekken(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink()
