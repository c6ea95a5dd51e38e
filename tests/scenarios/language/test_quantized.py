"""Quantised checkpoints: what transformers loads of them is served, exact beside stock `generate` of the same checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
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
from torch import Tensor
from torchao.quantization import Int8WeightOnlyConfig
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    TorchAoConfig,
)

from tests.support.harness import Harness, reference_reply
from tests.support.tiny.small import SMALL
from tests.support.tiny.text import MIXED
from tests.support.tiny.tokens import chatml
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.network.load import load_model
from ts_stateful.protocol.requests import Hello

NEW_TOKENS = 12
_BLOCK = 32
_MIDDLE = 8  # the integer of 4 bits that is 0

_Json = dict[str, Any]
_Tensors = dict[str, Tensor]


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
    weights: _Tensors = {}
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
    size = {"weight_block_size": [_BLOCK, _BLOCK]}
    _declare(folder, {"quant_method": "fp8", **size, "activation_scheme": "dynamic"})


def mxfp4(folder: Path) -> None:
    """Experts in 4 bits, with an exponent for 32 of them, as gpt-oss is published; a CPU gets them dequantised."""
    torch.manual_seed(81)
    config = GptOssConfig(**MIXED, num_local_experts=4, num_experts_per_tok=2)
    GptOssForCausalLM(config).save_pretrained(folder)
    weights: _Tensors = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if weight.dim() < 3:
            weights[name] = weight
            continue
        experts, inputs, outputs = weight.shape
        groups = experts, outputs, inputs // _BLOCK
        weights[f"{name}_blocks"] = torch.randint(256, (*groups, _BLOCK // 2), dtype=torch.uint8)
        weights[f"{name}_scales"] = torch.full(groups, 127 - 4, dtype=torch.uint8)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    others = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
    _declare(folder, {"quant_method": "mxfp4", "modules_to_not_convert": [*others, "lm_head"]})


def gptq(folder: Path) -> None:
    """Weights in 4 bits, in groups of inputs, packed along the inputs."""
    settings = {"quant_method": "gptq", "desc_act": False, "sym": True, "backend": "gptq_torch"}
    _packed(folder, {**settings, "checkpoint_format": "gptq"}, _gptq_layer)


def awq(folder: Path) -> None:
    """Weights in 4 bits, in groups of inputs, packed along the outputs in an order of their own."""
    settings = {
        "quant_method": "awq",
        "zero_point": True,
        "version": "gemm",
        "backend": "torch_awq",
    }
    _packed(folder, settings, _awq_layer)


def _packed(folder: Path, settings: _Json, layer: Callable[[Tensor, Tensor], _Tensors]) -> None:
    """Write a checkpoint with the tensors that `layer` makes of integers `(inputs, outputs)` and scales."""
    for package in ("gptqmodel", "optimum"):
        pytest.importorskip(package, reason=f"checkpoints of 4 bits need {package}")
    weights: _Tensors = {}
    for name, weight in load_file(plain(folder) / "model.safetensors").items():
        if "proj" not in name:
            weights[name] = weight
            continue
        groups = weight.T.reshape(-1, _BLOCK, weight.shape[0])
        scales = groups.abs().amax(1) / _MIDDLE
        steps = (groups / scales[:, None]).round() + _MIDDLE
        made = layer(steps.clamp(0, 15).int().reshape(weight.T.shape), scales.half())
        stem = name.removesuffix("weight")
        weights |= {f"{stem}{part}": tensor.contiguous() for part, tensor in made.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    settings = {**settings, "bits": 4, "group_size": _BLOCK}
    _declare(folder, settings)


def _gptq_layer(steps: Tensor, scales: Tensor) -> _Tensors:
    middles = torch.full(scales.shape, _MIDDLE - 1)  # which the format has one lower
    return {
        "qweight": _words(steps.T, range(8)).T,
        "qzeros": _words(middles, range(8)),
        "scales": scales,
        "g_idx": torch.arange(len(steps), dtype=torch.int32) // _BLOCK,
    }


def _awq_layer(steps: Tensor, scales: Tensor) -> _Tensors:
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    middles = torch.full(scales.shape, _MIDDLE)
    return {
        "qweight": _words(steps, order),
        "qzeros": _words(middles, order),
        "scales": scales,
    }


def _words(values: Tensor, order: Iterable[int]) -> Tensor:
    """Pack eight integers of 4 bits at a time, of the last dimension, into one of 32."""
    eights = values.long().unflatten(-1, (-1, 8))
    words = sum(eights[..., at] << 4 * place for place, at in enumerate(order))
    assert isinstance(words, Tensor)
    return words.to(torch.int32)  # its bits are kept


def _declare(folder: Path, settings: _Json) -> None:
    config: _Json = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = settings
    (folder / "config.json").write_text(json.dumps(config))


# Of optimum and gptqmodel.
@pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning",
    "ignore:Implicitly cleaning up.*gptqmodel:ResourceWarning",
)
@pytest.mark.parametrize(
    ("quantize", "method"),
    [
        (torchao, "torchao"),
        (compressed_tensors, "compressed-tensors"),
        (fp8, "fp8"),
        (mxfp4, "mxfp4"),
        (gptq, "gptq"),
        (awq, "awq"),
    ],
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
