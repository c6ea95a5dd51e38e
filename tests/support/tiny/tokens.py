"""Tokenizers that are trained on the spot, and chat templates."""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

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
# SmolVLM's own, without videos.
SMOLVLM = (
    "<|im_start|>{% for m in messages %}{{ m.role | capitalize }}"
    "{% if m.content is string %}: {{ m.content }}{% else %}"
    "{{ ':' if m.content[0].type == 'image' else ': ' }}"
    "{% for c in m.content %}{{ c.text if c.type == 'text' else '<image>' }}{% endfor %}{% endif %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
# Like Qwen3's template, which drops the reasoning of earlier turns: it rewrites history.
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
    *special: str, template: str | None = None, **names: Any
) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer with these special tokens, whose ids count from 0."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_bpe(special).to_str()), **names
    )
    tokenizer.chat_template = template
    return tokenizer


def chatml(*more: str, template: str = CHATML, **names: Any) -> PreTrainedTokenizerFast:
    """Return a tokenizer for ChatML: `<|endoftext|>` is 0, `<|im_start|>` 1, `<|im_end|>`, which ends a reply, 2."""
    return tokenizer_of(
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        *more,
        template=template,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        **names,
    )
