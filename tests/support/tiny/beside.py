"""Llama 3.2 Vision, whose layers attend to images beside the text, in the hub's layout."""

from __future__ import annotations

import torch
from transformers import MllamaConfig, MllamaForConditionalGeneration

from tests.support.tiny.published import Checkpoint, loaded
from tests.support.tiny.small import SMALL
from tests.support.tiny.tokens import tokenizer_of
from ts_stateful.language.network.load import Model

# As the published one, which has a system prompt of its own unless there are images.
_TEMPLATE = (
    "{%- set seen = namespace(images=false) %}{%- for m in messages if m.content is not string %}"
    "{%- for c in m.content if c.type == 'image' %}{%- set seen.images = true %}{%- endfor %}{%- endfor %}"
    "{{- bos_token }}{%- if messages[0].role == 'system' and seen.images %}{{- raise_exception('images') }}{%- endif %}"
    "{%- if messages[0].role != 'system' and not seen.images %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\\n\\nThe sky is blue.<|eot_id|>' }}{%- endif %}"
    "{%- for m in messages %}{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}"
    "{%- if m.content is string %}{{- m.content }}{%- else %}{%- for c in m.content %}"
    "{{- '<|image|>' if c.type == 'image' else c.text }}{%- endfor %}{%- endif %}{{- '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)


def mllama() -> Model:
    """Build Llama 3.2 Vision, which attends to images beside the text, a token for each."""
    return loaded(_mllama)


def _mllama() -> Checkpoint:
    torch.manual_seed(60)
    tokenizer = tokenizer_of(
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|eot_id|>",
        "<|end_header_id|>",
        "<|python_tag|>",
        "<|pad|>",
        template=_TEMPLATE,
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        pad_token="<|pad|>",
    )
    num_logits = len(tokenizer)  # the token of images is never generated
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|image|>"]})
    tower = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
        "attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
        "intermediate_layers_indices": [0],
        "vision_output_dim": 64,
    }
    text = {
        **SMALL,
        "vocab_size": num_logits,
        "num_hidden_layers": 4,
        "cross_attention_layers": [1, 3],
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    }
    config = MllamaConfig(vision_config=tower, text_config=text, image_token_index=num_logits)
    network = MllamaForConditionalGeneration(config).eval()
    network.generation_config.eos_token_id = 2
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.split(".")[-1].endswith("gate") or "gate_" in name.split(".")[-1]:
                parameter.fill_(0.8)  # closed in a random model
    files = {
        "preprocessor_config.json": {
            "image_processor_type": "MllamaImageProcessor",
            "processor_class": "MllamaProcessor",
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_pad": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "max_image_tiles": 4,
            "size": {"height": 16, "width": 16},
        }
    }
    return Checkpoint(network, tokenizer, files)
