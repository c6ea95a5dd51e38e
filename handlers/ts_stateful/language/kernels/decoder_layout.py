"""Recognition of stock networks whose decoder layers the compiled step can compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import GELUTanh, SiLUActivation

from ts_stateful.language.kernels.cpu.compiled_linear import CompiledLinear
from ts_stateful.language.kernels.cpu.kept_experts import CompactExperts, TurnedExperts
from ts_stateful.language.kernels.rotary import Rotary
from ts_stateful.language.kv.spans import Rows

__all__ = [
    "Decoder",
    "UnknownDecoderError",
    "activation_of",
    "feed_forward_of",
    "find_decoder",
    "has_positions",
    "norms_of",
    "router_of",
]

# Outermost classes that compute, without images or audio, only embeddings, decoder and output layer. So does a decoder's own
# `...ForCausalLM`.
_NETWORKS: Final = frozenset(
    {
        "AudioFlamingo3ForConditionalGeneration",
        "Gemma3ForConditionalGeneration",
        "Glm4vForConditionalGeneration",
        "GlmAsrForConditionalGeneration",
        "Idefics3ForConditionalGeneration",
        "InternVLForConditionalGeneration",
        "LlavaForConditionalGeneration",
        "LlavaNextForConditionalGeneration",
        "LlavaOnevisionForConditionalGeneration",
        "Mistral3ForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2_5OmniThinkerForConditionalGeneration",
        "Qwen2AudioForConditionalGeneration",
        "Qwen2VLForConditionalGeneration",
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "SmolVLMForConditionalGeneration",
        "VoxtralForConditionalGeneration",
    }
)
# Decoders, and the number that their norms add to their weights.
_DECODERS: Final = {
    "Ernie4_5Model": 0.0,
    "Exaone4Model": 0.0,
    "Gemma2Model": 1.0,
    "Gemma3TextModel": 1.0,
    "GemmaModel": 1.0,
    "Glm4Model": 0.0,
    "Glm4vTextModel": 0.0,
    "GlmModel": 0.0,
    "GptOssModel": 0.0,
    "GraniteModel": 0.0,
    "GraniteMoeModel": 0.0,
    "LlamaModel": 0.0,
    "Ministral3Model": 0.0,
    "MinistralModel": 0.0,
    "MistralModel": 0.0,
    "MixtralModel": 0.0,
    "Olmo2Model": 0.0,
    "Olmo3Model": 0.0,
    "OlmoeModel": 0.0,
    "Phi3Model": 0.0,
    "Qwen2_5_VLTextModel": 0.0,
    "Qwen2_5OmniThinkerTextModel": 0.0,
    "Qwen2Model": 0.0,
    "Qwen2VLTextModel": 0.0,
    "Qwen3Model": 0.0,
    "Qwen3MoeModel": 0.0,
    "Qwen3OmniMoeThinkerTextModel": 0.0,
    "Qwen3VLMoeTextModel": 0.0,
    "Qwen3VLTextModel": 0.0,
    "SeedOssModel": 0.0,
    "SmolLM3Model": 0.0,
}
_ACTIVATIONS: Final = {nn.SiLU: "silu", SiLUActivation: "silu", GELUTanh: "gelu"}
# Their modules are classes of their own source file, or these.
_COMMON: Final = frozenset(
    {
        *(nn.Linear, CompiledLinear, nn.Embedding, nn.ModuleList, nn.Dropout),
        *(CompactExperts, TurnedExperts, *_ACTIVATIONS),
    }
)


class UnknownDecoderError(ValueError):
    """A network's layers cannot be computed in one call; the message has the reason."""


@dataclass(frozen=True, eq=False)
class Decoder:
    """The parts of a recognized network, as it has them, and the numbers between them.

    `modules` take part in a step: if one of them has a hook, the stock network must run. So it must for a position from
    `num_positions` on, where queries grow. `weights` is the dtype of the layers' and experts' weights; other parameters have
    the network's.
    """

    embeddings: nn.Embedding
    rotary: Rotary
    layers: list[Any]
    norm: nn.Module
    head: nn.Linear
    modules: list[nn.Module]
    weights: torch.dtype
    num_positions: int | None
    norm_offset: float
    embedding_factor: float
    logit_divisor: float
    logit_cap: float | None

    def embed(self, rows: Rows) -> Tensor:
        """Return what the first layer receives, `(1, tokens, hidden)`, in memory that may be written."""
        given = rows.embedded
        embedded: Tensor = self.embeddings(torch.tensor([rows.ids])) if given is None else given
        if self.embedding_factor != 1:
            return embedded * self.embedding_factor
        return embedded if given is None else embedded.clone()

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits `(tokens, vocabulary)` after the last norm's outputs `(tokens, hidden)`."""
        return self.scaled(self.head(hidden))

    def scaled(self, logits: Tensor) -> Tensor:
        """Return logits from the output layer's outputs."""
        if self.logit_divisor != 1:
            logits = logits / self.logit_divisor
        if self.logit_cap is not None:
            logits = torch.tanh(logits / self.logit_cap) * self.logit_cap
        return logits


def find_decoder(network: PreTrainedModel) -> Decoder:
    """Return the parts of a network that consists of exact classes of the library, whose `forward` was read.

    Raises:
        UnknownDecoderError: a class is unknown, or a module has other weights, is in training, or has its own `forward`.
    """
    model: Any = network.get_decoder()
    name = type(model).__name__
    own = name.removesuffix("Model").removesuffix("Text") + "ForCausalLM"
    _demand(name in _DECODERS and type(network).__name__ in _NETWORKS | {own}, network)
    _demand(_is_stock(network) and _is_stock(model), network)
    config, head = model.config, network.get_output_embeddings()
    modules = [network, network.base_model, *model.modules(), head]
    for module in model.modules():
        is_own = type(module).__module__ == type(model).__module__
        _demand(is_own or type(module) in _COMMON, module)
    for module in modules:
        _demand("forward" not in vars(module), module, "has its own forward")
        _demand(not module.training, module, "is in training")
        kinds = {type(parameter) for parameter in module._parameters.values()}
        _demand(kinds <= {nn.Parameter, type(None)}, module, "has quantised weights")
    weights = _weights_of(model, network)
    _demand(type(head) in (nn.Linear, CompiledLinear), head)
    _demand(getattr(config, "clip_qkv", None) is None, model, "clips queries, keys and values")
    _demand(len(model.layers) == config.num_hidden_layers, model.layers)
    return Decoder(
        embeddings=model.embed_tokens,
        rotary=Rotary(model.rotary_emb),
        layers=list(model.layers),
        norm=model.norm,
        head=head,
        modules=modules,
        weights=weights,
        num_positions=_num_positions(config),
        norm_offset=_DECODERS[name],
        embedding_factor=getattr(model, "embedding_multiplier", 1.0),
        logit_divisor=getattr(config, "logits_scaling", 1.0),
        logit_cap=getattr(config, "final_logit_softcapping", None),
    )


def _num_positions(config: Any) -> int | None:
    grows = config.rope_parameters.get("llama_4_scaling_beta") is not None  # of Ministral 3
    return int(config.rope_parameters["original_max_position_embeddings"]) if grows else None


def _weights_of(model: Any, network: PreTrainedModel) -> torch.dtype:
    """Return the one dtype of a decoder's linear layers and experts; all other parameters have the network's."""
    weights: torch.dtype = model.layers[0].self_attn.o_proj.weight.dtype  # see `compact_weights`
    for module in (*model.layers.modules(), model.norm):
        for parameter in module.parameters(recurse=False):
            is_matrix = isinstance(module, nn.Linear) and parameter.dim() > 1
            expected = weights if is_matrix or parameter.dim() == 3 else network.dtype
            plain = parameter.dtype is expected and _is_plain(parameter, network.device)
            _demand(plain, model, f"has weights that are not plain {expected}")
    return weights


def _is_stock(module: nn.Module) -> bool:
    return type(module).__module__.startswith("transformers.models.")


def _is_plain(weight: Tensor, device: torch.device) -> bool:
    return (
        weight.device == device
        and weight.layout is torch.strided
        and weight.is_contiguous()
        and not weight.is_mkldnn
    )


def _demand(condition: bool, module: nn.Module, reason: str = "is not known") -> None:
    if not condition:
        raise UnknownDecoderError(f"{type(module).__name__} {reason}")


def activation_of(mlp: Any) -> str:
    """Return `silu` or `gelu`, which is computed by tanh: the activation of a stock feed-forward part, or of its experts.

    Raises:
        UnknownDecoderError: it is another one.
    """
    function = getattr(mlp, "act_fn", None) or getattr(mlp, "activation_fn", mlp)
    if type(function) not in _ACTIVATIONS:
        raise UnknownDecoderError(f"{type(function).__name__} is not known")
    return _ACTIVATIONS[type(function)]


def feed_forward_of(layer: Any) -> Any:
    """Return the feed-forward part of a stock layer, with or without experts."""
    return layer.block_sparse_moe if hasattr(layer, "block_sparse_moe") else layer.mlp


def router_of(mlp: Any) -> Any | None:
    """Return the router of a stock feed-forward part; None if it has no experts to choose."""
    return getattr(mlp, "router", None) or (mlp.gate if hasattr(mlp, "experts") else None)


def has_positions(attention: Any) -> bool:
    """Return False for layers whose queries and keys are not rotated: SmolLM3's, and beside windows EXAONE 4's."""
    if type(attention).__name__ == "Exaone4Attention":
        return attention.sliding_window is None or bool(attention.is_sliding)
    return bool(getattr(attention, "use_rope", True))


def norms_of(layer: Any) -> dict[str, Any]:
    """Return the norms of a layer by their places; None for those that it does not have."""
    names = {"norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    if hasattr(layer, "post_feedforward_layernorm"):
        names |= {
            "attended_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "fed_norm": "post_feedforward_layernorm",
        }
    if hasattr(layer, "post_mlp_layernorm"):
        names |= {"attended_norm": "post_self_attn_layernorm", "fed_norm": "post_mlp_layernorm"}
    norms = {place: getattr(layer, name, None) for place, name in names.items()}
    return norms | {name: getattr(layer.self_attn, name, None) for name in ("q_norm", "k_norm")}
