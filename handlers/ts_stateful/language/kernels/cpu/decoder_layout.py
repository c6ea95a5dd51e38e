"""Recognition of stock networks whose decoder layers are of the Llama family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.smollm3 import modeling_smollm3

from ts_stateful.language.kernels.cpu.compiled_linear import CompiledLinear

__all__ = ["Decoder", "UnknownDecoderError", "find_decoder"]

# Outermost classes that compute, without images, only embeddings, decoder and output layer.
_NETWORKS: Final = frozenset(
    {
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "SmolLM3ForCausalLM",
        "LlavaForConditionalGeneration",
        "LlavaNextForConditionalGeneration",
        "Idefics3ForConditionalGeneration",
        "SmolVLMForConditionalGeneration",
    }
)
_FAMILIES: Final = {
    "LlamaModel": (modeling_llama, "Llama"),
    "MistralModel": (modeling_mistral, "Mistral"),
    "Qwen2Model": (modeling_qwen2, "Qwen2"),
    "Qwen3Model": (modeling_qwen3, "Qwen3"),
    "SmolLM3Model": (modeling_smollm3, "SmolLM3"),
}
_PARTS: Final = ("DecoderLayer", "Attention", "MLP", "RMSNorm", "RotaryEmbedding")
_ACTIVATIONS: Final = (nn.SiLU, SiLUActivation)
_LINEARS: Final = (nn.Linear, CompiledLinear)


class UnknownDecoderError(ValueError):
    """A network is not of the Llama family; the message has the reason."""


@dataclass(frozen=True, eq=False)
class Decoder:
    """The parts of a recognized network, as it has them.

    `modules` take part in a step: if one of them has a hook, the stock network must run.
    """

    embeddings: nn.Embedding
    rotary: Any
    layers: list[Any]
    norm: nn.Module
    head: nn.Linear
    modules: list[nn.Module]


def find_decoder(network: PreTrainedModel) -> Decoder:
    """Return the parts of a network that consists of exact classes of the library, whose `forward` was read.

    Raises:
        UnknownDecoderError: a class is unknown, or a module has other weights, is in training, or has its own `forward`.
    """
    model: Any = network.get_decoder()
    _demand(_is_stock(network) and type(network).__name__ in _NETWORKS, network)
    _demand(_is_stock(model) and type(model).__name__ in _FAMILIES, model)
    source, family = _FAMILIES[type(model).__name__]
    decoder = Decoder(
        embeddings=model.embed_tokens,
        rotary=model.rotary_emb,
        layers=list(model.layers),
        norm=model.norm,
        head=network.get_output_embeddings(),
        modules=[network, network.base_model, *model.modules(), network.get_output_embeddings()],
    )
    own = {name: getattr(source, family + name) for name in _PARTS}
    _demand(type(decoder.embeddings) is nn.Embedding, decoder.embeddings)
    _demand(type(decoder.rotary) is own["RotaryEmbedding"], decoder.rotary)
    _demand(type(decoder.norm) is own["RMSNorm"], decoder.norm)
    _demand(type(decoder.head) in _LINEARS, decoder.head)
    _demand(len(decoder.layers) == model.config.num_hidden_layers, model.layers)
    for layer in decoder.layers:
        _check_layer(layer, own)
    for module in decoder.modules:
        _demand("forward" not in vars(module), module, "has its own forward")
        _demand(not module.training, module, "is in training")
        kinds = {type(parameter) for parameter in module._parameters.values()}
        _demand(kinds <= {nn.Parameter, type(None)}, module, "has quantised weights")
    return decoder


def _check_layer(layer: Any, own: dict[str, type]) -> None:
    _demand(type(layer) is own["DecoderLayer"], layer)
    _demand(type(layer.self_attn) is own["Attention"], layer.self_attn)
    _demand(type(layer.mlp) is own["MLP"], layer.mlp)
    _demand(type(layer.mlp.act_fn) in _ACTIVATIONS, layer.mlp.act_fn)
    attention, mlp = layer.self_attn, layer.mlp
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [getattr(attention, name) for name in ("q_norm", "k_norm") if hasattr(attention, name)]
    linears = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    for norm in norms:
        _demand(type(norm) is own["RMSNorm"], norm)
    for linear in linears:
        _demand(type(linear) in _LINEARS, linear)
    for module in (*norms, *linears):
        for parameter in (module.weight, getattr(module, "bias", None)):
            if parameter is not None:
                _demand(_is_plain(parameter), module, "has weights that are not plain float32")


def _is_stock(module: nn.Module) -> bool:
    return type(module).__module__.startswith("transformers.models.")


def _is_plain(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype is torch.float32
        and weight.layout is torch.strided
        and weight.is_contiguous()
        and not weight.is_mkldnn
    )


def _demand(condition: bool, module: nn.Module, reason: str = "is not known") -> None:
    if not condition:
        raise UnknownDecoderError(f"{type(module).__name__} {reason}")
