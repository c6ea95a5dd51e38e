"""The states that a model keeps for a token."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from ts_stateful.config.schema import ConfigError
from ts_stateful.language.kv.layout import KVLayout, LayerShape
from ts_stateful.language.network.layer_kinds import INDEXED, RECURRENT, layer_kinds

__all__ = ["cache_name", "find_layout", "reads_whole"]

# Names of the argument with the states of past tokens: since transformers 5.24, before, and of Mamba before.
_CACHES = ("cache", "past_key_values", "cache_params")


def cache_name(network: PreTrainedModel) -> str:
    """Return the name of the argument with the states of past tokens; empty if the model takes none."""
    accepts = inspect.signature(network.forward).parameters
    return next((name for name in _CACHES if name in accepts), "")


def reads_whole(network: PreTrainedModel) -> bool:
    """Return True if all tokens of a prompt see one another, and only those of its reply look back."""
    return bool(network.config.model_type == "paligemma")


@torch.inference_mode()
def find_layout(network: PreTrainedModel, name: str) -> KVLayout:
    """Return the shape of a token's states in every layer, as the model writes them, and its recurrent states.

    Raises:
        ConfigError: not every layer keeps keys and values, or recurrent states.
    """
    config = network.config.get_text_config(decoder=True)
    kinds = layer_kinds(config)
    beside = getattr(config, "cross_attention_layers", None) or ()  # they keep nothing of a text
    knows_layers = beside or kinds & {INDEXED, *RECURRENT}
    cache = DynamicCache(config=config) if knows_layers else DynamicCache()
    token = torch.zeros(1, 1, dtype=torch.long, device=network.device)
    network(input_ids=token, use_cache=True, **{cache_name(network): cache})
    if kinds & RECURRENT:
        return _recurrent_layout(cache, network.dtype, name)
    layers = [layer for at, layer in enumerate(cache.layers) if at not in beside]
    if not layers or not all(isinstance(layer.keys, Tensor) for layer in layers):
        raise ConfigError(
            f"{name}: not every layer keeps keys and values, so sessions cannot be kept"
        )
    shapes = [
        LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3])
        for layer in layers
    ]
    for at in sorted(beside):
        shapes.insert(at, LayerShape(0, 0, 0))
    found = [getattr(layer, "indexer_keys", None) for layer in layers]
    indexes = [0 if keys is None else keys.shape[2] for keys in found]
    return KVLayout(
        tuple(shapes),
        layers[0].keys.dtype,
        indexes=tuple(indexes) if any(indexes) else (),
        per_prompt=reads_whole(network),
    )


def _recurrent_layout(cache: DynamicCache, dtype: torch.dtype, name: str) -> KVLayout:
    shapes, counts, num_bytes = [], [], 0
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if isinstance(keys, Tensor) and isinstance(values, Tensor):
            shapes.append(LayerShape(keys.shape[1], keys.shape[3], values.shape[3]))
            dtype = keys.dtype
        else:
            shapes.append(LayerShape(0, 0, 0))
        counts.append(getattr(layer, "number_of_states", 0))
        for states in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})):
            num_bytes += sum(state.nbytes for state in states.values() if state is not None)
    if not num_bytes:
        raise ConfigError(f"{name}: its recurrent states are not in the library's cache")
    return KVLayout(tuple(shapes), dtype, tuple(counts), num_bytes)
