"""Tokenizers that are trained on the spot, and chat templates."""

from __future__ import annotations

import base64
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

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

# Tokens of Mistral's models by their rank; others are fillers.
_TEKKEN = {
    0: "<unk>",
    1: "<s>",
    2: "</s>",
    3: "[INST]",
    4: "[/INST]",
    5: "[AVAILABLE_TOOLS]",
    6: "[/AVAILABLE_TOOLS]",
    7: "[TOOL_RESULTS]",
    8: "[/TOOL_RESULTS]",
    9: "[TOOL_CALLS]",
    11: "<pad>",
    14: "[PREFIX]",
    15: "[MIDDLE]",
    16: "[SUFFIX]",
    17: "[SYSTEM_PROMPT]",
    18: "[/SYSTEM_PROMPT]",
    19: "[TOOL_CONTENT]",
    24: "[AUDIO]",
    25: "[BEGIN_AUDIO]",
    34: "[TRANSCRIBE]",
}


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


def tekken(seconds: float, bins: int) -> dict[str, Any]:
    """Return a `tekken.json` as Voxtral has it: `</s>` is 2, `[AUDIO]` 24; clips have windows of `seconds`."""
    byte_of = {char: byte for byte, char in bytes_to_unicode().items()}
    words = [bytes(byte_of[char] for char in word) for word, _ in _words()]
    vocabulary = [bytes([byte]) for byte in range(256)] + [word for word in words if word[1:]]
    entries = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(vocabulary)
    ]
    count = max(_TEKKEN) + 1
    special = [
        {"rank": rank, "token_str": _TEKKEN.get(rank, f"<SPECIAL_{rank}>"), "is_control": True}
        for rank in range(count)
    ]
    config = {
        "pattern": r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "num_vocab_tokens": len(entries),
        "default_vocab_size": len(entries) + count,
        "default_num_special_tokens": count,
        "version": "v7",
    }
    spectrogram = {"num_mel_bins": bins, "hop_length": 160, "window_size": 400}
    audio = {
        "sampling_rate": 16_000,
        "frame_rate": 12.5,
        "audio_encoding_config": spectrogram,
        "chunk_length_s": seconds,
    }
    return {"config": config, "vocab": entries, "special_tokens": special, "audio": audio}


def _words() -> list[tuple[str, int]]:
    return sorted(_bpe(()).get_vocab().items(), key=lambda item: item[1])
