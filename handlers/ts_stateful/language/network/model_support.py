"""Which stock models can be served exactly, and why the others cannot.

A session's context is computed piece by piece, each token from those before it, and can be cut back to any of them. A model
for which that gives something else than `generate` on the whole transcript would answer wrongly without an error, so it is
refused when it is loaded: by what its configuration says, by what its code takes, and at last by trying.

Knows nothing of sessions.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import get_layer_types_and_kwargs

from ts_stateful.config.schema import ConfigError
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.spans import Span
from ts_stateful.language.network.forward import Forward, find_layout

__all__ = ["Window", "check_config", "check_network", "find_window", "tried"]

# A "dummy" reads the keys and values of another layer.
_SERVED = {"full_attention", "sliding_attention", "chunked_attention", "dummy"}
_RECURRENT = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}
_WINDOWS = ("max_position_embeddings", "seq_length", "max_seq_len")  # what configurations call it
_GROWING_ROPE = {"dynamic", "longrope"}
_TRIAL = (5, 1, 3, 3)  # tokens of the pieces that are tried
_TOLERANCE, _HALF_TOLERANCE = 1e-3, 0.2  # of the logits' spread, in float32 and in half precision


class Window(NamedTuple):
    """How many tokens a context may have, and by what."""

    num_tokens: int
    limit: str


def check_config(config: Any, name: str) -> None:
    """Refuses what can be told before the weights are loaded.

    Raises:
        ConfigError: with the reason.
    """
    if config.is_encoder_decoder:
        raise ConfigError(f"{name}: an encoder-decoder model has no context that grows with turns")
    text_config = config.get_text_config(decoder=True)
    looks_ahead = getattr(text_config, "use_bidirectional_attention", None)
    if looks_ahead or not getattr(text_config, "is_causal", True):
        raise ConfigError(f"{name}: its attention is bidirectional: tokens look ahead")
    kinds = set(get_layer_types_and_kwargs(text_config)[0]) - _SERVED
    listed = ", ".join(sorted(kinds))
    if kinds & _RECURRENT:
        raise ConfigError(
            f"{name}: recurrent states ({listed}) cannot be cut back to an earlier token"
        )
    if kinds:
        raise ConfigError(f"{name}: layers keep more than keys and values ({listed})")


def check_network(network: PreTrainedModel, name: str, *, sees: bool) -> None:
    """Refuses what a model's code tells.

    Raises:
        ConfigError: with the reason.
    """
    accepts = inspect.signature(network.forward).parameters
    if "past_key_values" not in accepts:
        raise ConfigError(
            f"{name}: {type(network).__name__} takes no keys and values of past tokens"
        )
    marks = ("token_type_ids" in accepts, hasattr(network, "create_masks_for_generate"))
    if all(marks) or (sees and any(marks)):
        raise ConfigError(f"{name}: tokens of an image or of a prompt look ahead at one another")
    if sees:
        _check_sight(network, name)


def _check_sight(network: PreTrainedModel, name: str) -> None:
    if "moe_mm_token_type_ids" in inspect.signature(network.forward).parameters:
        raise ConfigError(f"{name}: its experts must be told which tokens stand for images")
    features = getattr(network.base_model, "get_image_features", None)
    if features is not None and "batch_num_images" in inspect.signature(features).parameters:
        raise ConfigError(f"{name}: how it sees an image depends on how many there are")
    for owner in (network, network.base_model):
        rope_index = getattr(owner, "get_rope_index", None)
        if rope_index is not None:
            takes = inspect.signature(rope_index).parameters
            if "mm_token_type_ids" not in takes or "image_grid_thw" not in takes:
                raise ConfigError(f"{name}: positions of its image tokens are not known")


def find_window(config: Any, name: str, asked: int | None) -> Window:
    """The context window, of which `asked` is what the configuration of the handler says.

    Where positions depend on the length of the whole context (dynamic and long RoPE) what is kept would have to change with
    it, so such a model is used up to where they begin to.

    Raises:
        ConfigError: nothing tells.
    """
    text_config = config.get_text_config(decoder=True)
    tokens = [getattr(text_config, key, None) for key in _WINDOWS]
    windows = [Window(count, "the model") for count in tokens if count]
    if asked is not None:
        windows.append(Window(asked, "handler.contextLength"))
    if not windows:
        raise ConfigError(f"{name}: its configuration tells no window; set handler.contextLength")
    parameters = getattr(text_config, "rope_parameters", None) or {}
    # Either those of all layers, or by kind of layer.
    ropes = [parameters] if "rope_type" in parameters else [p for p in parameters.values() if p]
    for rope in ropes:
        if rope.get("rope_type") in _GROWING_ROPE:
            original = rope.get("original_max_position_embeddings") or windows[0].num_tokens
            windows.append(Window(original, f"positions of type {rope['rope_type']}"))
    return min(windows, key=lambda window: window.num_tokens)


@torch.inference_mode()
def tried(network: PreTrainedModel, name: str) -> Forward:
    """The passes through a model, which have been seen to compute piece by piece what it computes at once.

    Raises:
        ConfigError: they do not, or cannot.
    """
    try:
        expected = network(
            input_ids=torch.tensor([_trial_ids(network)], device=network.device), use_cache=False
        ).logits[0]
        forward = Forward(network, find_layout(network, name))
        found = _in_pieces(network, forward)
    except ConfigError:
        raise
    except Exception as error:  # stock code that was not made for it may raise anything
        kind = type(network).__name__
        raise ConfigError(f"{name}: {kind} cannot be called piece by piece: {error}") from error
    apart, bound = _apart(found, expected)
    if not apart <= bound:  # not a number is refused too
        raise ConfigError(
            f"{name}: a context that is computed piece by piece gives other logits than all at once, "
            f"by {apart:.2g} of their spread"
        )
    return forward


def _in_pieces(network: PreTrainedModel, forward: Forward) -> Tensor:
    ids = _trial_ids(network)
    kv = KVCache(forward.layout, network.device)
    pieces = []
    for stop, count in zip(itertools.accumulate(_TRIAL), _TRIAL, strict=True):
        span = Span(kv, stop - count, count)
        pieces.append(forward(ids[stop - count : stop], [span], None, list(range(count))))
    return torch.cat(pieces)


def _apart(found: Tensor, expected: Tensor) -> tuple[float, float]:
    """How far logits `(tokens, vocabulary)` are apart, relative to their spread, and how far they may be.

    In half precision, rounding alone can send a token to another expert, so the median token tells.
    """
    spread = (expected - expected.mean(-1, keepdim=True)).float().norm(dim=-1)
    errors = (found - expected).float().norm(dim=-1) / spread
    if expected.dtype is torch.float32:
        return float(errors.max()), _TOLERANCE
    return float(errors.median()), _HALF_TOLERANCE


def _trial_ids(network: PreTrainedModel) -> list[int]:
    vocabulary = network.config.get_text_config(decoder=True).vocab_size
    return [(31 + 17 * i) % vocabulary for i in range(sum(_TRIAL))]
