"""The sizes of a session, computed from files, are those that engines allocate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoConfig,
    GlmMoeDsaConfig,
    LlamaConfig,
    MistralConfig,
    MllamaConfig,
    Qwen2Config,
)

from tests.support.plans import LLAMA_8B
from tests.support.tiny import MODELS, MORE_MODELS
from ts_stateful.config.sizes import (
    ModelUnknown,
    StatesSize,
    TransformerSize,
    parse_bytes,
    read_transformer,
    show_bytes,
)
from ts_stateful.config.sizes.layers import STATE_SETS
from ts_stateful.protocol.declarations import Datatype, State

# Without one model with a key that its family does not have, one for which older transformers keep more, those whose layers
# differ in their heads or have two attentions each, those whose written file lacks layers or a window, one whose tower is
# so small that most of it is what joins it to the language model, and one whose tower is of another package.
_UNKNOWN = {
    "opt",
    "deepseek_v3",
    "gemma3n_vision",
    "gemma4",
    "gemma4_vision",
    "longcat_flash",
    "kimi_linear",
    "nemotron_h",
    "qwen3_omni",
}
_KNOWN = {name: build for name, build in {**MODELS, **MORE_MODELS}.items() if name not in _UNKNOWN}
_LLAMA_31_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
    "vocab_size": 128_256,
}
# As on the hub: `text_config` has no values that equal the defaults of its class.
_LLAVA_15_7B: dict[str, Any] = {
    "model_type": "llava",
    "text_config": {
        "model_type": "llama",
        "max_position_embeddings": 4096,
        "vocab_size": 32064,
        "torch_dtype": "float16",
    },
    "vision_config": {
        "hidden_size": 1024,
        "image_size": 336,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "patch_size": 14,
    },
}


def _size(tmp_path: Path, document: object) -> TransformerSize:
    (tmp_path / "config.json").write_text(json.dumps(document))
    return read_transformer(tmp_path)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("512", 512),
        ("2_000_000", 2_000_000),
        ("80GiB", 80 << 30),
        ("80 gib", 80 << 30),
        ("24GB", 24_000_000_000),
        ("1.5k", 1500),
        ("512Mi", 512 << 20),
        ("7B", 7),
    ],
)
def test_bytes_are_parsed(text: str, num_bytes: int) -> None:
    """Decimal and binary units, with or without the B."""
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "80 gigs", "1.2.3"])
def test_an_invalid_number_of_bytes_is_refused(text: str) -> None:
    """The message has a valid example."""
    with pytest.raises(ValueError, match="80GiB"):
        parse_bytes(text)


@given(st.integers(0, 1 << 60))
def test_shown_bytes_are_close(num_bytes: int) -> None:
    """Three digits are within half a percent, and can be parsed again."""
    shown = show_bytes(num_bytes).replace(",", "").replace(" bytes", "")
    assert abs(parse_bytes(shown) - num_bytes) <= 0.006 * num_bytes


@pytest.mark.parametrize("name", sorted(_KNOWN))
def test_a_token_has_the_size_that_the_engine_measures(tmp_path: Path, name: str) -> None:
    """config.json gives the same layout and window as the running model."""
    model = _KNOWN[name]()
    model.network.config.to_json_file(str(tmp_path / "config.json"), use_diff=False)
    size = read_transformer(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps({"thinker_config": json.loads((tmp_path / "config.json").read_text())})
    )
    assert read_transformer(tmp_path) == size  # in a model that also speaks
    layout = model.forward.layout
    assert size.token_bytes("float32") == layout.token_bytes
    assert size.fixed.num_bytes("float32") == layout.num_bytes(0)
    assert size.window == model.context_tokens
    assert size.sees == (model.encoder is not None)
    # An estimate, of tiny models.
    assert size.weights == pytest.approx(model.num_parameters, rel=0.4)


@pytest.mark.parametrize(
    ("fields", "layers", "fixed"),
    [
        (  # Qwen3-Next-80B-A3B
            {
                "num_hidden_layers": 48,
                "full_attention_interval": 4,
                "linear_conv_kernel_dim": 4,
                "linear_key_head_dim": 128,
                "linear_value_head_dim": 128,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 32,
            },
            12,
            (36, 4 * 8192, 32 * 128 * 128),
        ),
        (  # Nemotron-H
            {
                "num_hidden_layers": 5,
                "hybrid_override_pattern": "M-M*-",
                "conv_kernel": 4,
                "mamba_num_heads": 128,
                "mamba_head_dim": 64,
                "n_groups": 8,
                "ssm_state_size": 128,
            },
            1,
            (2, 4 * (8192 + 2048), 8192 * 128),
        ),
    ],
)
def test_recurrent_states_are_read_as_on_the_hub(
    tmp_path: Path, fields: dict[str, Any], layers: int, fixed: tuple[int, int, int]
) -> None:
    """Their layers, and the numbers of each; a session keeps them at several places, recurrent ones in float32."""
    size = _size(tmp_path, {"hidden_size": 2048, "num_attention_heads": 16, **fields})
    assert size.layers == layers
    assert size.fixed == fixed
    each = 2 * fixed[1] + 4 * fixed[2]
    assert size.fixed.num_bytes("bfloat16") == STATE_SETS * fixed[0] * each


def test_public_models_are_known(tmp_path: Path) -> None:
    """Half a megabyte a token for LLaVA-1.5-7B, a quarter of it for Llama-3.1-8B, and weights as on the model's card."""
    llama = _size(tmp_path, _LLAMA_31_8B)
    assert llama.token_bytes("bfloat16") == 131_072
    assert llama.window == 131_072
    assert not llama.sees
    assert llama.weights == pytest.approx(8.03e9, rel=0.01)
    assert llama.estimated
    assert "32 layers x 8 KV heads x (128 + 128) x 2 bytes" in llama.arithmetic("bfloat16")
    vision = _size(tmp_path, _LLAVA_15_7B)
    assert vision.token_bytes("float16") == 524_288
    assert vision.image_tokens == 576
    assert vision.image_bytes(576, "float16") == 576 * 4096 * 2
    assert vision.weights == pytest.approx(7.06e9, rel=0.01)


@pytest.mark.parametrize("config", [LlamaConfig(), MistralConfig(), Qwen2Config()])
def test_defaults_are_those_of_transformers(tmp_path: Path, config: Any) -> None:
    """An empty configuration has the sizes that transformers gives it."""
    size = _size(tmp_path, {"model_type": config.model_type})
    assert size.layers == config.num_hidden_layers
    assert size.kv_heads == config.num_key_value_heads
    assert size.key_dim == config.hidden_size // config.num_attention_heads
    assert size.window == config.max_position_embeddings


@pytest.mark.parametrize(
    ("document", "elements"),
    [
        ({"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}, 12 * 12 * 128),
        ({"n_layer": 2, "n_head": 8, "n_embd": 64, "multi_query": True}, 2 * 1 * 16),
        (
            {
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "hidden_size": 64,
                "kv_lora_rank": 16,
                "qk_rope_head_dim": 8,
            },
            2 * (16 + 8),
        ),
    ],
)
def test_other_families_are_read(tmp_path: Path, document: object, elements: int) -> None:
    """Older names, a single head of keys, and latent attention, which keeps latents."""
    assert _size(tmp_path, document).token_bytes("float32") == 4 * elements


def test_an_image_beside_the_text_has_keys_and_values(tmp_path: Path) -> None:
    """As the engine counts them; in Llama 3.2 Vision of 11B, those of 4 tiles in 8 of 40 layers."""
    model = _KNOWN["mllama"]()
    assert model.encoder is not None
    model.network.config.to_json_file(str(tmp_path / "config.json"), use_diff=False)
    (tower,) = model.encoder.towers
    assert read_transformer(tmp_path).image_bytes(1, "float32") == tower.token_bytes
    config = MllamaConfig(vision_config={"image_size": 560})
    config.to_json_file(str(tmp_path / "config.json"), use_diff=False)
    size = read_transformer(tmp_path)
    assert (size.layers, size.image_tokens) == (32, 1)
    assert size.image_bytes(1, "bfloat16") == 8 * 2 * 8 * 128 * 4 * 1601 * 2


@pytest.mark.parametrize(
    ("fields", "indexes"),
    [
        ({}, 6),
        ({"indexer_types": ["full", "shared", "shared"] * 2}, 2),
        ({"index_topk_pattern": "FFSSSF"}, 3),
        ({"index_topk_freq": 4}, 3),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, 2),
    ],
)
def test_indexes_are_counted(tmp_path: Path, fields: dict[str, Any], indexes: int) -> None:
    """Those of the class in transformers, and each has a key of its own for every token."""
    small = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "index_head_dim": 32}
    layers = {"num_hidden_layers": 6, "num_attention_heads": 4, "hidden_size": 64}
    document = {"model_type": "glm_moe_dsa", **layers, **small, **fields}
    size = _size(tmp_path, document)
    assert size.indexes == GlmMoeDsaConfig(**document).indexer_types.count("full") == indexes
    assert size.token_bytes("float32") == 4 * (6 * (16 + 8) + indexes * 32)
    assert f"+ {indexes} indexes x 32) x 4 bytes" in size.arithmetic("float32")


def test_the_window_of_growing_positions_is_the_original_one(tmp_path: Path) -> None:
    """Beyond it the kept states would change, so the engine stops there."""
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 4096}
    assert _size(tmp_path, {**_LLAMA_31_8B, "rope_scaling": rope}).window == 4096


def test_weights_are_counted_in_their_files(tmp_path: Path) -> None:
    """By the files that the library loads, or their index; else they are estimated."""
    names = {"x": "model-00001-of-00001.safetensors"}
    index = {"metadata": {"total_size": 4000}, "weight_map": names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "consolidated.safetensors").write_bytes(bytes(8000))
    size = _size(tmp_path, _LLAMA_31_8B)
    assert (size.weights, size.estimated) == (2000, False)
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(bytes(8000))
    size = _size(tmp_path, _LLAMA_31_8B)
    assert size.weight_bytes("float32") == 16_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("{", "not the configuration of a model: Expecting"),
        ("[]", "not the configuration of a model: Expected `object`"),
        ("[" * 100_000, "nested too deeply"),
        ('{"model_type": "new"}', "use_diff=False"),
    ],
)
def test_a_file_without_sizes_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    """With the remedy."""
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelUnknown, match=message):
        read_transformer(tmp_path)


def test_the_cure_for_an_incomplete_configuration_works(tmp_path: Path) -> None:
    """A file of transformers with `use_diff=False` has all sizes."""
    config = AutoConfig.for_model("gemma2")
    config.to_json_file(str(tmp_path / "config.json"), use_diff=False)
    size = read_transformer(tmp_path / "config.json")
    assert (size.layers, size.kv_heads, size.key_dim) == (26, 4, 256)


def test_states_have_the_size_of_their_elements() -> None:
    """Fixed states have their size, growing ones their `max`."""
    states = [
        State(name="hidden", shape=(2, 1024)),
        State(name="keys", shape=(-1, 64), max=128, datatype=Datatype.FP16),
        State(name="step", shape=(), datatype=Datatype.INT64),
    ]
    size = StatesSize.of(states)
    assert size.num_bytes == 2 * 1024 * 4 + 128 * 64 * 2 + 8
    assert "keys 128 x 64 x 2 bytes (FP16)" in size.arithmetic


def test_every_datatype_has_a_size() -> None:
    """At least one byte an element."""
    for datatype in Datatype:
        assert StatesSize.of([State(name="x", shape=(3,), datatype=datatype)]).num_bytes >= 3


def test_a_part_of_a_split_model_has_a_part_of_the_heads() -> None:
    """Latents stay whole, because all heads read the same ones."""
    part = LLAMA_8B.part(4)
    assert (part.kv_heads, part.weights) == (2, LLAMA_8B.weights / 4)
    latent = replace(LLAMA_8B, kv_heads=1, latent=True)
    assert latent.part(4).kv_heads == 1
    with pytest.raises(ModelUnknown, match="cannot be divided by 16 devices"):
        LLAMA_8B.part(16)
