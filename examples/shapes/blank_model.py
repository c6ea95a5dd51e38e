"""The untrained model and its processor: sizes, vocabulary, chat template.

All of it is stock: a CLIP vision tower and a Llama joined by LLaVA's projector, a word-level fast
tokenizer, CLIP's image processor in its Pillow version.
"""

from __future__ import annotations

import re
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from descriptions import CAPITALS, WORDS
from dialogues import NONE, NUMBERS, QUESTIONS, Ask
from scenes import COLORS, KINDS, SEEN_SIDE

PATCH: Final = 8
IMAGE_TOKENS: Final = (SEEN_SIDE // PATCH) ** 2
CONTEXT: Final = 4096
TEXT_WIDTH: Final = 128

PAD, UNKNOWN, BEGIN, END = "<pad>", "<unk>", "<s>", "<|end|>"
IMAGE, SYSTEM, USER, ASSISTANT = "<image>", "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL: Final = (PAD, UNKNOWN, BEGIN, END, IMAGE, SYSTEM, USER, ASSISTANT)

# Only ever appends: what a longer conversation renders to starts with what a shorter one does,
# and the generation prompt with an answer and its end is that answer's message.
TEMPLATE: Final = """\
{{- bos_token -}}
{%- for message in messages -%}
  {%- if message.role not in ['system', 'user', 'assistant'] -%}
    {{- raise_exception('no such role: ' ~ message.role) -}}
  {%- endif -%}
  {{- '<|' ~ message.role ~ '|>' -}}
  {%- if message.content is string -%}
    {{- message.content -}}
  {%- else -%}
    {%- for part in message.content -%}
      {%- if part.type == 'image' -%}
        {{- '<image>' -}}
      {%- elif part.type == 'text' -%}
        {{- part.text -}}
      {%- else -%}
        {{- raise_exception('no such content: ' ~ part.type) -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
  {{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|assistant|>' -}}
{%- endif -%}
"""


def vocabulary() -> dict[str, int]:
    """Token ids: the special tokens, the words and marks of short questions and answers, then those of descriptions."""
    texts = [question.text.lower() for question in QUESTIONS if question.ask is not Ask.DESCRIBE]
    words = {word for text in texts for word in re.findall(r"\w+|[^\w\s]", text)}
    words |= {*KINDS, *COLORS, *NUMBERS, NONE, "yes", "no", ".", ",", "!"}
    more = sorted({*WORDS, *CAPITALS} - words)
    return {token: number for number, token in enumerate([*SPECIAL, *sorted(words), *more])}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A fast word-level tokenizer; case does not matter and punctuation stands alone.

    Only the words that begin the sentences of a description have tokens of their own with a capital.

    It adds no token of its own: the template writes the beginning, so that a turn tokenized by
    itself gives the same ids as within the transcript.
    """
    words = Tokenizer(models.WordLevel(vocabulary(), unk_token=UNKNOWN))
    words.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.add_tokens([AddedToken(word, single_word=True, normalized=False) for word in CAPITALS])
    # Of a WordPiece decoder only the spacing is wanted: none before a mark, one between words.
    words.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
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
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_processor() -> LlavaProcessor:
    """Tokenizer, template and an image processor that squeezes any canvas into a square.

    Nothing is cropped: the resize ignores the aspect ratio, because padding a slim canvas would
    leave too few pixels for its shapes.
    """
    side = {"height": SEEN_SIDE, "width": SEEN_SIDE}
    image_processor = CLIPImageProcessorPil(
        size=side,
        crop_size=side,
        do_center_crop=False,
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )
    return LlavaProcessor(
        image_processor=image_processor,
        tokenizer=build_tokenizer(),
        patch_size=PATCH,
        num_additional_image_tokens=1,  # the tower's class token, which "default" drops again
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
    )


def build_model() -> LlavaForConditionalGeneration:
    """The model with random weights, about 1.1 million parameters."""
    ids = vocabulary()
    tokens: dict[str, Any] = {
        "pad_token_id": ids[PAD],
        "bos_token_id": ids[BEGIN],
        "eos_token_id": ids[END],
    }
    vision = CLIPVisionConfig(
        image_size=SEEN_SIDE,
        patch_size=PATCH,
        hidden_size=96,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        projection_dim=96,
    )
    text = LlamaConfig(
        vocab_size=len(ids),
        hidden_size=TEXT_WIDTH,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        **tokens,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=ids[IMAGE],
        image_seq_length=IMAGE_TOKENS,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        **tokens,
    )
    model = LlavaForConditionalGeneration(config)
    # No max_length: it is the caller's to choose.
    model.generation_config = GenerationConfig(do_sample=False, **tokens)
    return model
