"""Small random-weight models of real `transformers` configurations, with tokenizers trained on the spot."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.tiny.beside import mllama
from tests.support.tiny.cutting import cohere2_vision, lfm2_vl, llama4_vision
from tests.support.tiny.hearing import audio_flamingo3, glm_asr, qwen2_audio, voxtral
from tests.support.tiny.latent import (
    deepseek_v2,
    deepseek_v3,
    deepseek_v32,
    glm4_moe_lite,
    glm_moe_dsa,
    longcat_flash,
    minicpm3,
    mistral4,
    youtu,
)
from tests.support.tiny.like_llama import (
    ernie4_5,
    exaone4,
    gemma,
    glm,
    glm4,
    granite_moe,
    ministral,
    ministral3,
    olmo3,
    olmoe,
    seed_oss,
)
from tests.support.tiny.looking_ahead import gemma3_vision, gemma3n_vision, gemma4_vision
from tests.support.tiny.merging import (
    glm4v,
    qwen2_5_vl,
    qwen2_vl,
    qwen3_5_vision,
    qwen3_vl,
    qwen3_vl_moe,
)
from tests.support.tiny.more_text import (
    bloom,
    cohere,
    falcon,
    falcon_alibi,
    gemma3n,
    gemma4,
    gpt_neox,
    gpt_oss,
    granite,
    llama4,
    mixtral,
    mpt,
    olmo2,
    opt,
    qwen2_moe,
    qwen3_moe,
    smollm3,
    stablelm,
)
from tests.support.tiny.omni import qwen2_5_omni, qwen3_omni
from tests.support.tiny.own_attention import codegen, gpt_neo, gptj
from tests.support.tiny.prefix import paligemma, paligemma2
from tests.support.tiny.recurrent_text import (
    bamba,
    falcon_h1,
    falcon_mamba,
    granite_hybrid,
    jamba,
    kimi_linear,
    lfm2,
    lfm2_moe,
    mamba,
    mamba2,
    nemotron_h,
    olmo_hybrid,
    qwen3_5,
    qwen3_next,
)
from tests.support.tiny.seeing import (
    idefics3,
    internvl,
    llava,
    llava_onevision,
    llava_onevision_untiled,
    mistral3,
    pixtral,
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
    gemma2,
    gemma3,
    gemma3_vision,
    gpt2,
    idefics3,
    llama,
    llava,
    mamba2,
    mistral,
    phi3,
    qwen2,
    qwen2_vl,
    qwen3,
    qwen3_next,
    smolvlm,
)
# Other supported models, each tested in one long conversation.
MORE_MODELS = _named(
    audio_flamingo3,
    bamba,
    bloom,
    codegen,
    cohere,
    cohere2_vision,
    deepseek_v2,
    deepseek_v3,
    deepseek_v32,
    ernie4_5,
    exaone4,
    falcon,
    falcon_alibi,
    falcon_h1,
    falcon_mamba,
    gemma,
    gemma3n,
    gemma3n_vision,
    gemma4,
    gemma4_vision,
    glm,
    glm4,
    glm4_moe_lite,
    glm4v,
    glm_asr,
    glm_moe_dsa,
    gpt_neo,
    gpt_neox,
    gpt_oss,
    gptj,
    granite,
    granite_hybrid,
    granite_moe,
    internvl,
    jamba,
    kimi_linear,
    lfm2,
    lfm2_moe,
    lfm2_vl,
    llama4,
    llama4_vision,
    llava_onevision,
    llava_onevision_untiled,
    longcat_flash,
    mamba,
    minicpm3,
    ministral,
    ministral3,
    mistral3,
    mistral4,
    mixtral,
    mllama,
    mpt,
    nemotron_h,
    olmo2,
    olmo3,
    olmo_hybrid,
    olmoe,
    opt,
    paligemma,
    paligemma2,
    pixtral,
    qwen2_5_omni,
    qwen2_5_vl,
    qwen2_audio,
    qwen2_moe,
    qwen3_5,
    qwen3_5_vision,
    qwen3_moe,
    qwen3_omni,
    qwen3_vl,
    qwen3_vl_moe,
    seed_oss,
    smollm3,
    stablelm,
    voxtral,
    youtu,
)
