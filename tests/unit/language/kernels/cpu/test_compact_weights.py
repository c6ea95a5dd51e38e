"""Float32 weights that are held in 16 bits: the same replies from half the bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.tiny import MODELS, MORE_MODELS, llama, save
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.cpu_kernels.build import is_worthwhile
from ts_stateful.language.kernels.cpu import replace_linears
from ts_stateful.language.kernels.cpu.compact_weights import find_compact
from ts_stateful.language.kernels.cpu.fused_layers import FusedLayers
from ts_stateful.language.network.load import Model, accelerate, load_model

BUILDERS = {**MODELS, **MORE_MODELS}
FAMILIES = (
    *("gemma2", "gemma3", "granite", "llama", "mistral", "mixtral", "olmo2", "phi3", "qwen2"),
    *("qwen3", "smollm3", "gemma3_vision", "llava", "qwen2_5_vl"),
    *("glm4", "gpt_oss", "olmo3", "olmoe"),
)
pytestmark = [
    pytest.mark.skipif(
        not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
    ),
    pytest.mark.skipif(
        not is_worthwhile(torch.device("cpu"), torch.float32), reason="not used on this processor"
    ),
]


@pytest.fixture(autouse=True)
def _small_layers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replace_linears, "_SMALLEST", 1)


def rounded(name: str, dtype: torch.dtype = torch.bfloat16) -> Model:
    """Build a small model in float32 whose weights a smaller dtype represents, as those of most checkpoints."""
    model = BUILDERS[name]()
    for parameter in model.network.parameters():
        parameter.data = parameter.data.to(dtype).float()
    return model


def layers_of(model: Model) -> list[nn.Linear]:
    modules = model.network.get_decoder().layers.modules()
    return [module for module in modules if isinstance(module, nn.Linear)]


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.bfloat16) for name in FAMILIES), ("phi3", torch.float16)]
)
def test_replies_are_those_of_stock_code(name: str, dtype: torch.dtype) -> None:
    """In any family of one call, turn after turn, prompts of one piece and of several, about an image too."""
    model, stock = rounded(name, dtype), rounded(name, dtype)
    accelerate(model, HandlerConfig())
    assert isinstance(model.forward.shortcut, FusedLayers)
    assert {layer.weight.dtype for layer in layers_of(model)} == {dtype}
    assert model.network.dtype is model.forward.layout.dtype is torch.float32
    harness = Harness(model)
    harness.open("s", [noise(1)] if model.encoder else [])
    for times in (1, 12, 2):
        harness.prompt("s", "What is it? " * times, max_new_tokens=12)
        reference_reply(stock, harness, "s", 12)


@pytest.mark.parametrize(
    ("dtype", "tied"), [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, False)]
)
def test_a_checkpoint_of_16_bits_is_computed_in_float32(
    dtype: torch.dtype, tied: bool, tmp_path: Path
) -> None:
    """As it lies on the hub. Embeddings stay in float32, also those that the output layer shares."""
    model = llama()
    model.network.config.tie_word_embeddings = tied
    if tied:
        model.network.tie_weights()
    model.network.to(dtype)
    folder = save(model, tmp_path)
    settings = HandlerConfig(model=str(folder), dtype="float32")
    device = torch.device("cpu")
    loaded = load_model(settings, folder, device)
    plain = load_model(
        HandlerConfig(model=str(folder), dtype="float32", compact_weights=False), folder, device
    )
    assert {layer.weight.dtype for layer in layers_of(loaded)} == {dtype}
    assert {layer.weight.dtype for layer in layers_of(plain)} == {torch.float32}
    assert loaded.network.get_output_embeddings().weight.dtype is dtype
    assert loaded.network.get_input_embeddings().weight.dtype is torch.float32
    assert loaded.fingerprint == plain.fingerprint
    harness = Harness(loaded)
    harness.open("s")
    harness.prompt("s", "What is it?", max_new_tokens=12)
    reference_reply(plain, harness, "s", 12)


def test_layers_are_compact_together() -> None:
    """One call has one dtype of weights; the output layer decides for itself."""
    model = rounded("llama")
    head = model.network.get_output_embeddings()
    assert find_compact(model.network) == dict.fromkeys([*layers_of(model), head], torch.bfloat16)
    weight = layers_of(model)[3].weight
    weight.data[0, 0] = 1 + 2**-20
    assert find_compact(model.network) == {head: torch.bfloat16}
    head.weight.data[0, 0] = 1 + 2**-10
    head.weight.data[1:] = 0.5
    assert find_compact(model.network) == {head: torch.float16}
    head.weight.data[0, 0] = torch.nan
    assert find_compact(model.network) == {}


def test_experts_are_compact_with_their_layers() -> None:
    """All of them or none; a router's scores are computed from float32."""
    model = rounded("mixtral")
    layer = model.network.get_decoder().layers[1]
    accelerate(model, HandlerConfig())
    assert layer.mlp.experts.down_proj.dtype is torch.bfloat16
    assert layer.mlp.gate.weight.dtype is torch.float32
    other = rounded("mixtral")
    other.network.get_decoder().layers[1].mlp.experts.down_proj.data[2, 3, 4] = 1 + 2**-20
    assert find_compact(other.network) == {other.network.get_output_embeddings(): torch.bfloat16}
    accelerate(other, HandlerConfig())
    assert isinstance(other.forward.shortcut, FusedLayers)


def test_experts_whose_inputs_do_not_fill_a_vector_stay() -> None:
    """With them, all decoder layers."""
    model = rounded("qwen3_moe")  # 48 inputs
    assert find_compact(model.network) == {model.network.get_output_embeddings(): torch.bfloat16}


def test_other_networks_are_left_alone() -> None:
    """Unknown decoders, those in bfloat16, and layers that are watched."""
    assert find_compact(rounded("gpt2").network) == {}
    model = rounded("llama")
    layers_of(model)[0].register_forward_hook(lambda *_: None)
    assert find_compact(model.network) == {model.network.get_output_embeddings(): torch.bfloat16}
    assert find_compact(rounded("llama").network.bfloat16()) == {}


def test_small_layers_stay_and_keep_others_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call would take longer than reading their weights."""
    monkeypatch.setattr(replace_linears, "_SMALLEST", 1 << 16)
    assert find_compact(rounded("llama").network) == {}
