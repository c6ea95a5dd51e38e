"""PaliGemma, whose prompts look ahead as a whole, in the hub's layout."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PaliGemmaConfig, PaliGemmaForConditionalGeneration
from transformers.models.paligemma.processing_paligemma import EXTRA_TOKENS

from tests.support.tiny.published import Checkpoint, loaded
from tests.support.tiny.seeing import TOWER
from tests.support.tiny.small import SMALL, mute
from tests.support.tiny.text import MIXED
from tests.support.tiny.tokens import tokenizer_of
from ts_stateful.language.network.load import Model

_TOKENS = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
_NUM_TOKENS = 1792  # those of texts, of places and of images
_SQUARE = {"height": 32, "width": 32}


def paligemma() -> Model:
    """Build PaliGemma, which reads each prompt as a whole: a turn computes the conversation again, but no image."""
    return loaded(_paligemma)


def paligemma2() -> Model:
    """Build PaliGemma 2, which reads each prompt as a whole, also beyond the windows of Gemma 2."""
    return loaded(_paligemma2)


def _paligemma() -> Checkpoint:
    torch.manual_seed(52)
    text = {**SMALL, "model_type": "gemma", "head_dim": 16, "num_key_value_heads": 1}
    return _checkpoint(text)


def _paligemma2() -> Checkpoint:
    torch.manual_seed(53)
    caps = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}
    return _checkpoint({**MIXED, **caps, "model_type": "gemma2", "query_pre_attn_scalar": 16})


def _checkpoint(text: dict[str, Any]) -> Checkpoint:
    # As the published one: places and images have tokens of the vocabulary.
    tokenizer = tokenizer_of(*_TOKENS.values(), "\n\n", "\n\n\n", **_TOKENS)
    tokenizer.add_tokens(EXTRA_TOKENS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    image = tokenizer.convert_tokens_to_ids("<image>")
    ends = {"eos_token_id": 1, "bos_token_id": 2, "pad_token_id": 0}
    config = PaliGemmaConfig(
        text_config={**text, **ends, "vocab_size": _NUM_TOKENS},
        vision_config={
            **TOWER,
            "model_type": "siglip_vision_model",
            "projection_dim": 64,
            "vision_use_head": False,
        },
        image_token_index=image,
        projection_dim=64,
        hidden_size=64,
        tie_word_embeddings=False,
        **ends,
    )
    network = PaliGemmaForConditionalGeneration(config).eval()
    network.generation_config.eos_token_id = 1
    mute(network, image)
    files = {
        "preprocessor_config.json": {
            "do_convert_rgb": None,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_processor_type": "SiglipImageProcessor",
            "image_seq_length": 16,
            "image_std": [0.5, 0.5, 0.5],
            "processor_class": "PaliGemmaProcessor",
            "resample": 3,
            "rescale_factor": 0.00392156862745098,
            "size": _SQUARE,
        }
    }
    return Checkpoint(network, tokenizer, files)
