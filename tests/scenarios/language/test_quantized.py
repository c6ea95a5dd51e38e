"""Quantised checkpoints: what transformers loads of them is served, exact beside stock `generate` of the same checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationConfig,
    apply_quantization_config,
    preset_name_to_scheme,
)
from safetensors.torch import load_file, save_file
from torchao.quantization import Int8WeightOnlyConfig
from transformers import LlamaConfig, LlamaForCausalLM, TorchAoConfig

from tests.support.harness import Harness, reference_reply
from tests.support.tiny.small import SMALL
from tests.support.tiny.tokens import chatml
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.network.load import load_model
from ts_stateful.protocol.requests import Hello

NEW_TOKENS = 12
_BLOCK = 32


def plain(folder: Path) -> Path:
    """Write the checkpoint before it is quantised."""
    torch.manual_seed(80)
    LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(folder)
    return folder


def torchao(folder: Path) -> None:
    """Weights in 8 bits, by torchao."""
    settings = TorchAoConfig(Int8WeightOnlyConfig())
    source = plain(folder / "plain")
    LlamaForCausalLM.from_pretrained(
        source, quantization_config=settings, dtype=torch.float32
    ).save_pretrained(folder)


def compressed_tensors(folder: Path) -> None:
    """Weights and activations in FP8, by compressed-tensors."""
    network = LlamaForCausalLM.from_pretrained(plain(folder / "plain"), dtype=torch.float32)
    groups = {"group": preset_name_to_scheme("FP8", ["Linear"])}
    apply_quantization_config(network, QuantizationConfig(config_groups=groups, ignore=["lm_head"]))
    for module in network.modules():
        if hasattr(module, "weight_scale"):
            module.weight_scale.data.fill_(float(module.weight.detach().abs().max()) / 448)
            module.input_scale.data.fill_(0.05)
    compressor = ModelCompressor.from_pretrained_model(network)
    compressor.compress_model(network)
    network.save_pretrained(folder)
    compressor.update_config(folder)


def fp8(folder: Path) -> None:
    """Weights in blocks of FP8, as DeepSeek publishes them; a CPU gets them dequantised."""
    weights: dict[str, torch.Tensor] = {}
    for name, weight in load_file(plain(folder) / "model.safetensors").items():
        if "proj" not in name:
            weights[name] = weight
            continue
        rows, columns = weight.shape
        blocks = weight.reshape(rows // _BLOCK, _BLOCK, columns // _BLOCK, _BLOCK)
        scales = blocks.abs().amax((1, 3)) / 448
        scaled = (blocks / scales[:, None, :, None]).reshape(rows, columns)
        weights[name] = scaled.to(torch.float8_e4m3fn)
        weights[f"{name}_scale_inv"] = scales
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "weight_block_size": [_BLOCK, _BLOCK],
        "activation_scheme": "dynamic",
    }
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("quantize", "method"),
    [(torchao, "torchao"), (compressed_tensors, "compressed-tensors"), (fp8, "fp8")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_quantised_checkpoint_is_exact(
    quantize: Callable[[Path], None], method: str, tmp_path: Path
) -> None:
    """With everything enabled: what our kernels do not take is computed by torch. `hello` names the method."""
    quantize(tmp_path)
    chatml().save_pretrained(tmp_path)
    model = load_model(HandlerConfig(model=str(tmp_path)), tmp_path, torch.device("cpu"))
    harness = Harness(model)
    assert harness.ask(Hello())["quantization"] == method
    harness.open("s")
    for question in ("What color is the circle?", "And the square?"):
        harness.prompt("s", question, max_new_tokens=NEW_TOKENS)
        reference_reply(model, harness, "s", NEW_TOKENS)
    assert model.forward.flat
    assert (
        model.fingerprint["weights"]
        == load_model(
            HandlerConfig(model=str(tmp_path)), tmp_path, torch.device("cpu")
        ).fingerprint["weights"]
    )
