"""Vision-language models of Google's, in the hub's layout; image tokens of most of them see one another."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3nConfig,
    Gemma3nForConditionalGeneration,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
)

from tests.support.tiny.published import Checkpoint, loaded
from tests.support.tiny.releases import since
from tests.support.tiny.seeing import TOWER
from tests.support.tiny.small import mute
from tests.support.tiny.text import MIXED
from tests.support.tiny.tokens import tokenizer_of
from ts_stateful.language.network.load import Model

_GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{% if m.content is string %}{{ m.content | trim }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}IMAGE{% else %}{{ c.text | trim }}{% endif %}{% endfor %}{% endif %}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_TOKENS = {
    "pad_token": "<pad>",
    "eos_token": "<end_of_turn>",
    "bos_token": "<bos>",
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}
_SQUARE = {"height": 32, "width": 32}


def gemma3_vision() -> Model:
    """Build Gemma 3 from 4B on: images of 4 tokens, which see one another in all layers."""
    return loaded(_gemma3)


def gemma3n_vision() -> Model:
    """Build Gemma 3n: a convolutional tower of timm's, images of 4 tokens, which see only backwards."""
    return loaded(_gemma3n, needs="timm")


def gemma4_vision() -> Model:
    """Build Gemma 4: images of up to 70 tokens, which see one another in layers with a window."""
    return loaded(_gemma4)


def _tokenizer(placeholder: str, **more: str) -> Any:
    # Gemma's vocabulary has tokens of several line feeds, which images have around them.
    return tokenizer_of(
        *_TOKENS.values(),
        "<start_of_turn>",
        "\n\n",
        "\n\n\n",
        *more.values(),
        template=_GEMMA.replace("IMAGE", placeholder),
        **_TOKENS,
        **more,
    )


def _gemma3() -> Checkpoint:
    torch.manual_seed(50)
    network = Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config={
                **MIXED,
                "query_pre_attn_scalar": 16,
                "eos_token_id": 1,
                "bos_token_id": 2,
            },
            vision_config=dict(TOWER),
            mm_tokens_per_image=4,
            boi_token_index=3,
            eoi_token_index=4,
            image_token_index=5,
            tie_word_embeddings=False,
        )
    ).eval()
    torch.nn.init.normal_(
        network.base_model.multi_modal_projector.mm_input_projection_weight, std=0.2
    )
    network.generation_config.eos_token_id = 1
    mute(network, 5)
    files = {
        "preprocessor_config.json": {
            "image_processor_type": "Gemma3ImageProcessor",
            "processor_class": "Gemma3Processor",
            "image_seq_length": 4,
            "size": _SQUARE,
        },
        "processor_config.json": {"image_seq_length": 4, "processor_class": "Gemma3Processor"},
    }
    return Checkpoint(network, _tokenizer("<start_of_image>"), files)


def _gemma3n() -> Checkpoint:
    torch.manual_seed(83)
    # Those of images and clips come after the text's, and have embeddings of their own.
    text, image, audio = 420, ("<end_of_image>", "<image_soft_token>"), ("<eoa>", "<audio>")
    tokenizer = tokenizer_of(
        *("<pad>", "<end_of_turn>", "<bos>", "<start_of_image>", "<start_of_audio>"),
        *("<start_of_turn>", "\n\n", "\n\n\n"),
        template=_GEMMA.replace("IMAGE", "<image_soft_token>"),
        **{**_TOKENS, "boa_token": "<start_of_audio>", "eoa_token": audio[0]},
        audio_token=audio[1],
    )
    ids = tokenizer.convert_tokens_to_ids([*image, *audio])
    assert ids == [text, text + 1, text + 2, text + 3]
    network = Gemma3nForConditionalGeneration(
        Gemma3nConfig(
            text_config={
                **MIXED,
                "vocab_size": text + 4,
                "num_kv_shared_layers": 2,
                "vocab_size_per_layer_input": text,
                "hidden_size_per_layer_input": 16,
                "laurel_rank": 8,
                "altup_num_inputs": 2,
                "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
                "eos_token_id": 1,
                "bos_token_id": 2,
            },
            vision_config={
                "vocab_size": 2,
                "vocab_offset": text,
                "model_args": {"channel_multiplier": 0.0625, "msfa_output_resolution": 2},
            },
            audio_config={
                "vocab_size": 2,
                "vocab_offset": text + 2,
                "hidden_size": 16,
                "conf_num_attention_heads": 2,
                "conf_num_hidden_layers": 1,
                "sscp_conv_channel_size": [8, 8],
            },
            vision_soft_tokens_per_image=4,
            boi_token_id=3,
            eoi_token_id=ids[0],
            image_token_id=ids[1],
            boa_token_id=4,
            eoa_token_id=ids[2],
            audio_token_id=ids[3],
            tie_word_embeddings=False,
        )
    ).eval()
    network.generation_config.eos_token_id = 1
    mute(network, *ids)
    files = {
        "preprocessor_config.json": {
            "image_processor_type": "SiglipImageProcessorFast",
            "processor_class": "Gemma3nProcessor",
            "feature_extractor_type": "Gemma3nAudioFeatureExtractor",
            "image_seq_length": 4,
            "size": {"height": 64, "width": 64},
            "do_normalize": False,
        },
        "processor_config.json": {"image_seq_length": 4, "processor_class": "Gemma3nProcessor"},
    }
    return Checkpoint(network, tokenizer, files)


def _gemma4() -> Checkpoint:
    since("5.23", "its processor needs torchvision")
    torch.manual_seed(51)
    network = Gemma4ForConditionalGeneration(
        Gemma4Config(
            text_config={
                **MIXED,
                "eos_token_id": 1,
                "bos_token_id": 2,
                "use_bidirectional_attention": "vision",
                "hidden_size_per_layer_input": 0,
                "vocab_size_per_layer_input": 512,
                "tie_word_embeddings": False,
            },
            vision_config={
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "patch_size": 4,
                "pooling_kernel_size": 3,
                "position_embedding_size": 128,
                "initializer_range": 0.2,
            },
            audio_config=None,
            boi_token_id=3,
            eoi_token_id=4,
            image_token_id=5,
            video_token_id=9,
            audio_token_id=10,
            tie_word_embeddings=False,
        )
    ).eval()
    network.generation_config.eos_token_id = 1
    mute(network, 5, 9, 10)
    tokenizer = _tokenizer(
        "<image_soft_token>",
        video_token="<|video|>",
        audio_token="<|audio|>",
        boa_token="<|boa|>",
        eoa_token="<|eoa|>",
    )
    files = {
        "processor_config.json": {
            "processor_class": "Gemma4Processor",
            "image_seq_length": 70,
            "image_processor": {
                "image_processor_type": "Gemma4ImageProcessor",
                "patch_size": 4,
                "max_soft_tokens": 70,
                "pooling_kernel_size": 3,
            },
            "video_processor": {"video_processor_type": "Gemma4VideoProcessor"},
            "feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor"},
        }
    }
    return Checkpoint(network, tokenizer, files)
