"""Small random-weight models of real `transformers` configurations, with tokenizers trained on the spot."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.tiny.more_text import (
    bloom,
    cohere,
    deepseek_v3,
    falcon,
    falcon_alibi,
    gemma3n,
    gpt_neox,
    gpt_oss,
    granite,
    llama4,
    mpt,
    olmo2,
    opt,
    qwen2_moe,
    smollm3,
    stablelm,
)
from tests.support.tiny.seeing import (
    idefics3,
    llava,
    qwen2_5_vl,
    qwen2_vl,
    qwen3_vl,
    smolvlm,
)
from tests.support.tiny.small import save
from tests.support.tiny.text import (
    gemma2,
    gemma3,
    gpt2,
    llama,
    mistral,
    phi3,
    qwen2,
    qwen3,
)
from tests.support.tiny.tokens import CHATML, REWRITING, VICUNA, chatml, tokenizer_of
from ts_stateful.language.network.load import Model

__all__ = [
    "CHATML",
    "MODELS",
    "MORE_MODELS",
    "REWRITING",
    "VICUNA",
    "chatml",
    "llama",
    "llava",
    "qwen2_vl",
    "save",
    "tokenizer_of",
]

_Builders = dict[str, Callable[[], Model]]


def _named(*builders: Callable[[], Model]) -> _Builders:
    return {builder.__name__: builder for builder in builders}


MODELS = _named(
    gemma2, gemma3, gpt2, idefics3, llama, llava, mistral, phi3, qwen2, qwen2_vl, qwen3, smolvlm
)
# Other supported models, each tested in one long conversation.
MORE_MODELS = _named(
    bloom,
    cohere,
    deepseek_v3,
    falcon,
    falcon_alibi,
    gemma3n,
    gpt_neox,
    gpt_oss,
    granite,
    llama4,
    mpt,
    olmo2,
    opt,
    qwen2_5_vl,
    qwen2_moe,
    qwen3_vl,
    smollm3,
    stablelm,
)
