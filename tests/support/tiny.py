"""Small random-weight models of real `transformers` configurations, with tokenizers trained on the spot."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ts_stateful.engine.model import Model, build_model

torch.set_num_threads(1)  # these models are too small to gain from more, and tests share the machine

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and then it asks what color the sky is.",
    "How many shapes are there? There are three shapes: a circle, a square and a triangle.",
    "What color is the circle? Red. And the square? Blue. Which one is yellow? The triangle.",
    "Streaming text never splits a character: äöü, 你好, 🙂 — they all survive, piece by piece.",
    "user assistant system USER ASSISTANT tell me a story about a turtle who keeps the session",
] * 4

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VICUNA = (
    "{% for m in messages %}{% if m.role != 'system' %}{{ m.role | upper }}: {% endif %}"
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content if c.type == 'image' %}<image>\n{% endfor %}"
    "{% for c in m.content if c.type == 'text' %}{{ c.text }}{% endfor %}{% endif %} "
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
# Like Qwen3's template, which drops the reasoning of earlier turns: it rewrites what was said.
REWRITING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content[:4] }}{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def _bpe(special: tuple[str, ...]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def tokenizer_of(
    *special: str, template: str | None = None, **names: str
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with these special tokens."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_bpe(special).to_str()), **names
    )
    tokenizer.chat_template = template
    return tokenizer


_SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,  # random, but not indifferent: argmax must have clear winners
}


def _chatml() -> PreTrainedTokenizerFast:
    return tokenizer_of(
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        template=CHATML,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )


def llama(template: str = CHATML) -> Model:
    """Llama with grouped heads and ChatML."""
    torch.manual_seed(1)
    tokenizer = _chatml()
    tokenizer.chat_template = template
    network = LlamaForCausalLM(LlamaConfig(**_SMALL, eos_token_id=2, bos_token_id=0)).eval()
    return build_model("llama", network, tokenizer)


def qwen2() -> Model:
    """Qwen2 with ChatML."""
    torch.manual_seed(2)
    network = Qwen2ForCausalLM(Qwen2Config(**_SMALL, eos_token_id=2, bos_token_id=0)).eval()
    return build_model("qwen2", network, _chatml())


def gpt2() -> Model:
    """GPT-2, learned positions, no chat template."""
    torch.manual_seed(3)
    config = GPT2Config(
        vocab_size=512,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=512,
        initializer_range=0.2,
        eos_token_id=0,
        bos_token_id=0,
    )
    tokenizer = tokenizer_of("<|endoftext|>", eos_token="<|endoftext|>", bos_token="<|endoftext|>")
    return build_model("gpt2", GPT2LMHeadModel(config).eval(), tokenizer)


def llava() -> Model:
    """LLaVA: CLIP vision, Llama text, 16 tokens an image."""
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
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=32,
        patch_size=8,
        initializer_range=0.2,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=LlamaConfig(**_SMALL, eos_token_id=1, bos_token_id=0),
        image_token_id=2,
        vision_feature_layer=-1,
    )
    network = LlavaForConditionalGeneration(config).eval()
    network.generation_config.eos_token_id = 1
    _mute(network, 2)
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


class _Qwen2VLProcessorPil:
    """Qwen2-VL's processing without its video half, which needs torchvision."""

    image_token = "<|image_pad|>"
    chat_template = CHATML

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.image_processor = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=28 * 28 * 16)

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


def qwen2_vl() -> Model:
    """Qwen2-VL: M-RoPE positions, images of any size."""
    torch.manual_seed(5)
    tokenizer = tokenizer_of(
        "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
        "<|image_pad|>", "<|video_pad|>", template=CHATML, eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )  # fmt: skip
    config = Qwen2VLConfig(
        text_config={
            **_SMALL,
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [2, 3, 3],
                "rope_theta": 1e4,
            },
            "eos_token_id": 2,
            "bos_token_id": 0,
        },
        vision_config={
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 64,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        image_token_id=5,
        video_token_id=6,
        vision_start_token_id=3,
        vision_end_token_id=4,
    )
    network = Qwen2VLForConditionalGeneration(config).eval()
    network.generation_config.eos_token_id = 2
    _mute(network, 5, 6)
    return build_model("qwen2_vl", network, _Qwen2VLProcessorPil(tokenizer))


def _mute(network: Any, *token_ids: int) -> None:
    """Keeps a random model from generating image tokens, over which stock `generate` stumbles in the next turn."""
    with torch.no_grad():
        network.lm_head.weight[list(token_ids)] = 0


MODELS = {
    "llama": llama,
    "qwen2": qwen2,
    "gpt2": gpt2,
    "llava": llava,
    "qwen2_vl": qwen2_vl,
}


def save(model: Model, folder: Path) -> Path:
    """Writes a model as an ordinary checkpoint folder."""
    model.network.save_pretrained(folder)
    owner = model.text._owner
    owner.save_pretrained(folder)
    return folder
