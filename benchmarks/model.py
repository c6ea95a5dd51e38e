"""The measured model: a LLaVA of stock `transformers` configurations with random weights, and its text part alone.

Every token is a word, so a client receives every token as text at once, and can count tokens by words. The rows of the special
tokens in the output layer are zero: none of them is ever generated, and a reply has the requested length.
"""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar

__all__ = [
    "ASSISTANT",
    "BEGIN",
    "CONTEXT",
    "END",
    "IMAGE_BYTES",
    "IMAGE_TOKENS",
    "NUM_SPECIAL",
    "SPECIAL",
    "TEMPLATE_TOKENS",
    "TOKEN_BYTES",
    "USER",
    "build",
    "build_tokenizer",
    "words",
]

VOCABULARY: Final = 8000
CONTEXT: Final = 4096
SIDE, PATCH = 224, 14
IMAGE_TOKENS: Final = (SIDE // PATCH) ** 2
WIDTH, LAYERS, HEADS, KV_HEADS = 512, 8, 8, 4

# State that a session must hold in float32: keys and values of a token, and the embeddings of an image.
TOKEN_BYTES: Final = 2 * 4 * LAYERS * KV_HEADS * (WIDTH // HEADS)
IMAGE_BYTES: Final = 4 * IMAGE_TOKENS * WIDTH

PAD, UNKNOWN, BEGIN, END = "<pad>", "<unk>", "<s>", "<|end|>"
IMAGE, SYSTEM, USER, ASSISTANT = "<image>", "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL: Final = (PAD, UNKNOWN, BEGIN, END, IMAGE, SYSTEM, USER, ASSISTANT)
NUM_SPECIAL: Final = len(SPECIAL)

# Tokens that the template puts around the words of a prompt: the end of the previous reply (for the first prompt, the
# beginning of the text), the user's mark, the end of the prompt, the assistant's mark.
TEMPLATE_TOKENS: Final = 4

# It only appends.
TEMPLATE: Final = """\
{{- bos_token -}}
{%- for message in messages -%}
  {{- '<|' ~ message.role ~ '|>' -}}
  {%- if message.content is string -%}
    {{- message.content -}}
  {%- else -%}
    {%- for part in message.content -%}
      {{- '<image>' if part.type == 'image' else part.text -}}
    {%- endfor -%}
  {%- endif -%}
  {{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|assistant|>' -}}
{%- endif -%}
"""


@cache
def words() -> tuple[str, ...]:
    """Return the words of the vocabulary, in the order of their ids, which begin at `NUM_SPECIAL`."""
    syllables = ["".join(pair) for pair in itertools.product("bdfgklmnprstvz", "aeiou")]
    made = itertools.chain(
        map("".join, itertools.product(syllables, repeat=2)),
        map("".join, itertools.product(syllables, repeat=3)),
    )
    return tuple(itertools.islice(made, VOCABULARY - NUM_SPECIAL))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a fast tokenizer of one token a word; the template writes all special tokens."""
    pieces = [*SPECIAL, *("▁" + word for word in words())]
    tokenizer = Tokenizer(
        models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token=UNKNOWN)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        bos_token=BEGIN,
        eos_token=END,
        extra_special_tokens={
            "image_token": IMAGE,
            "system_token": SYSTEM,
            "user_token": USER,
            "assistant_token": ASSISTANT,
        },
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )


def build(folder: Path, text_dtype: str = "float32") -> tuple[Path, Path]:
    """Write two checkpoints into `folder` and return their folders: the LLaVA, and its text part. Takes seconds.

    The text part is rounded to `text_dtype`.
    """
    torch.manual_seed(0)
    disable_progress_bar()
    tokenizer = build_tokenizer()
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessorPil(
            size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
        ),
        tokenizer=tokenizer,
        patch_size=PATCH,
        num_additional_image_tokens=1,  # the tower's class token, which "default" drops again
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
    )
    llava = LlavaForConditionalGeneration(_llava_config(tokenizer)).eval()
    text = LlamaForCausalLM(llava.config.text_config).eval()
    with torch.no_grad():
        llava.lm_head.weight[:NUM_SPECIAL] = 0
        text.model.load_state_dict(llava.model.language_model.state_dict())
        text.lm_head.load_state_dict(llava.lm_head.state_dict())
    text.to(getattr(torch, text_dtype))
    made = []
    for name, network, owner in (("llava", llava, processor), ("text", text, tokenizer)):
        network.generation_config = GenerationConfig(
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        network.save_pretrained(folder / name)
        owner.save_pretrained(folder / name)
        made.append(folder / name)
    return made[0], made[1]


def _llava_config(tokenizer: PreTrainedTokenizerFast) -> LlavaConfig:
    tokens = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    # Larger than usual: attention is selective as in a trained model, which exposes wrong implementations.
    spread = 0.05
    vision = CLIPVisionConfig(
        image_size=SIDE,
        patch_size=PATCH,
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=6,
        projection_dim=384,
        initializer_range=spread,
    )
    text = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=1408,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=CONTEXT,
        initializer_range=spread,
        **tokens,
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=IMAGE_TOKENS,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        **tokens,
    )
