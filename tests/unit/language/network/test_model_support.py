"""A model that would not be served exactly is refused when it is loaded, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BertConfig,
    BertLMHeadModel,
    BloomConfig,
    CpmAntConfig,
    CpmAntForCausalLM,
    DeepseekV4Config,
    Ernie4_5_VLMoeConfig,
    Ernie4_5_VLMoeForConditionalGeneration,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Glm5NextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    Phi3Config,
    Phi3ForCausalLM,
    RobertaConfig,
    RobertaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
)

from tests.support.tiny import chatml
from tests.support.tiny.more_text import gpt_oss
from tests.support.tiny.small import SMALL
from tests.support.weights import NO_WEIGHTS
from ts_stateful.config.schema import ConfigError, HandlerConfig
from ts_stateful.language.network.load import build_model, load_model
from ts_stateful.language.network.model_support import (
    check_config,
    check_network,
    find_window,
    verified_forward,
)

CONFIGS = [
    (BartConfig(), "encoder-decoder"),
    (DeepseekV4Config(), "deepseek_v4 model: its layers compress blocks of tokens"),
    (Gemma3TextConfig(use_bidirectional_attention=True), "bidirectional"),
    (Glm5NextConfig(), "layers with an index and recurrent layers"),
]


@pytest.mark.parametrize(
    ("config", "reason"), CONFIGS, ids=[type(config).__name__ for config, _ in CONFIGS]
)
def test_a_configuration_is_refused_before_its_weights_are_loaded(
    config: Any, reason: str, tmp_path: Path
) -> None:
    """The folder holds no real weights; the message names the setting and the reason."""
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(NO_WEIGHTS)
    (tmp_path / "tokenizer.json").write_text("{}")
    settings = HandlerConfig(model=str(tmp_path))
    with pytest.raises(ConfigError) as refused:
        load_model(settings, tmp_path, torch.device("cpu"))
    assert "handler.model" in str(refused.value)
    assert reason in str(refused.value)


def _bert(family: Any, config: Any, **more: Any) -> Any:
    small = {**SMALL, "max_position_embeddings": 512, **more}
    return family(config(**small)).eval()


def test_a_model_that_looks_ahead_is_refused() -> None:
    """BERT accepts a cache and answers, but its tokens depend on later ones."""
    network = _bert(BertLMHeadModel, BertConfig)
    with pytest.raises(ConfigError, match="in pieces gives other logits"):
        build_model("bert", network, chatml())


def test_a_model_that_counts_positions_otherwise_is_refused() -> None:
    """RoBERTa's positions begin after that of its padding token."""
    network = _bert(RobertaForCausalLM, RobertaConfig, is_decoder=True, pad_token_id=1)
    with pytest.raises(ConfigError, match="in pieces gives other logits"):
        build_model("roberta", network, chatml())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_hides_nothing(dtype: torch.dtype) -> None:
    """Rounding, or a token that goes to another expert, is distinguished from looking ahead."""
    with pytest.raises(ConfigError, match="in pieces gives other logits"):
        verified_forward(_bert(BertLMHeadModel, BertConfig).to(dtype), "bert")
    network = gpt_oss().network.to(dtype)
    network.set_attn_implementation("eager")  # as it was loaded
    assert verified_forward(network, "gpt_oss").layout.dtype is dtype


def test_a_decoder_of_the_same_family_is_served() -> None:
    """BERT as a decoder looks back only."""
    network = _bert(BertLMHeadModel, BertConfig, is_decoder=True)
    assert build_model("bert", network, chatml()).context_tokens == 512


def test_a_model_that_takes_no_cache_is_refused() -> None:
    """RWKV keeps states, but of another kind."""
    config = RwkvConfig(vocab_size=512, hidden_size=64, num_hidden_layers=2, context_length=64)
    with pytest.raises(ConfigError, match="RwkvForCausalLM takes no keys and values"):
        build_model("rwkv", RwkvForCausalLM(config).eval(), chatml())


def test_a_model_that_fails_piece_by_piece_is_refused() -> None:
    """CPM-Ant needs the whole context in every call."""
    config = CpmAntConfig(
        vocab_size=512, hidden_size=64, num_attention_heads=4, dim_head=16, dim_ff=128,
        num_hidden_layers=2,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="CpmAntForCausalLM cannot compute a context in pieces"):
        build_model("cpmant", CpmAntForCausalLM(config).eval(), chatml())


def _without_weights(family: Any, config: Any) -> Any:
    with torch.device("meta"):
        return family(config)


def test_experts_that_need_image_positions_are_refused() -> None:
    """ERNIE 4.5 VL sends image tokens to experts of their own."""
    config = Ernie4_5_VLMoeConfig(text_config={"num_hidden_layers": 1})
    network = _without_weights(Ernie4_5_VLMoeForConditionalGeneration, config)
    with pytest.raises(ConfigError, match="experts"):
        check_network(network, "ernie", has_vision=True)


def test_images_that_depend_on_how_many_there_are_are_refused() -> None:
    """LLaVA-OneVision cuts a single image into tiles, but not several: a second one would change the first."""
    config = LlavaOnevisionConfig(text_config=LlamaConfig(**SMALL))
    network = _without_weights(LlavaOnevisionForConditionalGeneration, config)
    with pytest.raises(ConfigError, match=r"set `handler\.imageTiling` to `each` or `none`"):
        check_network(network, "onevision", has_vision=True)
    check_network(network, "onevision", has_vision=True, image_tiling="each")
    llama = _without_weights(LlamaForCausalLM, LlamaConfig(**SMALL))
    with pytest.raises(ConfigError, match=r"handler\.imageTiling: llama does not choose"):
        check_network(llama, "llama", has_vision=True, image_tiling="each")


def test_the_window_ends_where_positions_would_change() -> None:
    """Phi-3's long factors, from a certain length on, would apply to everything that was kept."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
    }
    config = Phi3Config(**SMALL, rope_parameters=rope, original_max_position_embeddings=96)
    assert build_model("phi3", Phi3ForCausalLM(config).eval(), chatml()).context_tokens == 96


def test_dynamic_positions_are_served_as_far_as_they_are_not() -> None:
    """Dynamic NTK changes nothing up to the length of the model's training."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    network = LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=rope)).eval()
    assert build_model("llama", network, chatml(), 4096).context_tokens == 1024


@pytest.mark.parametrize(("asked", "expected"), [(None, 1024), (100, 100), (2000, 1024)])
def test_the_window_is_the_smaller_one(asked: int | None, expected: int) -> None:
    """A handler can ask for less than the model has, and not for more."""
    assert find_window(LlamaConfig(**SMALL), "llama", asked).num_tokens == expected


def test_a_missing_window_must_be_configured() -> None:
    """BLOOM's configurations have none."""
    config = BloomConfig()
    with pytest.raises(ConfigError, match=r"set handler\.contextLength"):
        find_window(config, "bloom", None)
    assert find_window(config, "bloom", 256) == (256, "handler.contextLength")


@pytest.mark.parametrize("config", [LlamaConfig(), Gemma3TextConfig(), Gemma3nTextConfig()])
def test_what_is_served_passes(config: Any) -> None:
    """Windows, and layers that share keys and values, are supported."""
    check_config(config, "model")
