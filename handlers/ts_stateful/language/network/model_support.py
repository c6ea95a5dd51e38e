"""Checks that a stock model can be served exactly.

A session's context is computed in pieces, each token from those before it, and can be cut back to any token. Some models would
then differ from `generate` on the whole transcript, without an error. They are refused when they are loaded: by their
configuration, by their code, and at last by a comparison of logits.
"""

from __future__ import annotations

import inspect
import itertools
import logging
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ts_stateful.config.check.checkpoint import REFUSED
from ts_stateful.config.schema import ConfigError
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.spans import Span
from ts_stateful.language.network.forward import Batching, Forward
from ts_stateful.language.network.image_positions import knows_positions
from ts_stateful.language.network.layer_kinds import INDEXED, RECURRENT, layer_kinds
from ts_stateful.language.network.layout import cache_name, find_layout, reads_whole
from ts_stateful.language.network.one_pass import find_forward
from ts_stateful.language.parallel.weights import is_split, whole_weights

__all__ = [
    "Window",
    "check_config",
    "check_network",
    "distance",
    "find_window",
    "verified_forward",
]

logger = logging.getLogger(__name__)

# A "dummy" reads the keys and values of another layer.
_SERVED = {"full_attention", "sliding_attention", "chunked_attention", "dummy", INDEXED}
_WINDOWS = ("max_position_embeddings", "seq_length", "max_seq_len")  # its names in configurations
_GROWING_ROPE = {"dynamic", "longrope"}
_CHUNKS = (5, 1, 3, 3)  # tokens of the pieces that are compared
_BACK = 6  # the end of one, to which a session goes back
_TOLERANCE, _HALF_TOLERANCE = 1e-3, 0.2  # of the logits' spread, in float32 and in half precision


class Window(NamedTuple):
    """The maximum tokens of a context, and the name of what limits it."""

    num_tokens: int
    limit: str


def check_config(config: Any, name: str) -> None:
    """Check a model's configuration, before its weights are loaded.

    Raises:
        ConfigError: the model cannot be served exactly; the message has the reason.
    """
    if config.is_encoder_decoder:
        raise ConfigError(
            f"{name}: the context of an encoder-decoder model does not grow with turns"
        )
    text_config = config.get_text_config(decoder=True)
    looks_ahead = getattr(text_config, "use_bidirectional_attention", None)
    looks_ahead = looks_ahead not in (None, False, "vision") and config.model_type != "paligemma"
    if looks_ahead or not getattr(text_config, "is_causal", True):
        raise ConfigError(f"{name}: its attention is bidirectional: tokens look ahead")
    if text_config.model_type in REFUSED:
        raise ConfigError(f"{name}: {REFUSED[text_config.model_type]}")
    kinds = layer_kinds(text_config)
    if INDEXED in kinds and kinds & RECURRENT:
        raise ConfigError(
            f"{name}: layers with an index and recurrent layers are not served together"
        )
    kinds -= _SERVED | RECURRENT
    listed = ", ".join(sorted(kinds))
    if kinds:
        raise ConfigError(f"{name}: layers keep more than keys and values ({listed})")


def check_network(
    network: PreTrainedModel, name: str, *, has_vision: bool, image_tiling: str | None = None
) -> None:
    """Check the signatures of a model's code; `image_tiling` is that of the configuration.

    Raises:
        ConfigError: the model cannot be served exactly; the message has the reason.
    """
    if not cache_name(network):
        raise ConfigError(
            f"{name}: {type(network).__name__} takes no keys and values of past tokens"
        )
    if has_vision:
        _check_vision(network, name, image_tiling)


def _check_vision(network: PreTrainedModel, name: str, image_tiling: str | None) -> None:
    if "moe_mm_token_type_ids" in inspect.signature(network.forward).parameters:
        raise ConfigError(f"{name}: its experts need to know which tokens stand for images")
    features = getattr(network.base_model, "get_image_features", None)
    depends = features is not None and "batch_num_images" in inspect.signature(features).parameters
    if depends and image_tiling is None:
        raise ConfigError(
            f"{name}: an image is cut into tiles only where it is alone, and a session may get more:"
            " set `handler.imageTiling` to `each` or `none`, or `handler.vision: false`"
        )
    if image_tiling is not None and not depends:
        raise ConfigError(
            f"handler.imageTiling: {name} does not choose by the number of images; remove it"
        )
    for owner in (network, network.base_model):
        rope_index = getattr(owner, "get_rope_index", None)
        if rope_index is not None and not knows_positions(rope_index):
            raise ConfigError(f"{name}: the positions of its image tokens are unknown")


def find_window(config: Any, name: str, configured: int | None) -> Window:
    """Return the smaller one of the model's context window and `configured`, the handler's setting.

    With dynamic and long RoPE, positions depend on the length of the whole context, so kept states would have to change. Such a
    model is used up to where that begins.

    Raises:
        ConfigError: neither gives a window.
    """
    text_config = config.get_text_config(decoder=True)
    tokens = [getattr(text_config, key, None) for key in _WINDOWS]
    windows = [Window(count, "the model") for count in tokens if count]
    if configured is not None:
        windows.append(Window(configured, "handler.contextLength"))
    if not windows:
        raise ConfigError(
            f"{name}: its configuration has no context window; set handler.contextLength"
        )
    parameters = getattr(text_config, "rope_parameters", None) or {}
    # For all layers, or by kind of layer.
    ropes = [parameters] if "rope_type" in parameters else [p for p in parameters.values() if p]
    for rope in ropes:
        if rope.get("rope_type") in _GROWING_ROPE:
            original = rope.get("original_max_position_embeddings") or windows[0].num_tokens
            windows.append(Window(original, f"positions of type {rope['rope_type']}"))
    return min(windows, key=lambda window: window.num_tokens)


@torch.inference_mode()
def verified_forward(network: PreTrainedModel, name: str, *, quantised: bool = False) -> Forward:
    """Return the passes through a model, verified to compute in pieces what it computes at once.

    Raises:
        ConfigError: they differ, or a call failed.
    """
    try:
        expected = _at_once(network)
        if is_split(network):
            _check_parts(network, name, expected)
        forward = find_forward(network, find_layout(network, name))
        apart, bound = distance(_in_pieces(network, forward), expected, quantised=quantised)
        if not apart <= bound and forward.layout.recurrent:
            forward = forward.with_batching(Batching(batched=forward.batched, token_by_token=True))
            apart, bound = distance(_in_pieces(network, forward), expected, quantised=quantised)
            logger.warning(
                "%s: prompts after a session's first chunk take a pass for each token", name
            )
    except ConfigError:
        raise
    except Exception as error:  # stock code that was not made for it may raise anything
        kind = type(network).__name__
        raise ConfigError(f"{name}: {kind} cannot compute a context in pieces: {error}") from error
    if not apart <= bound:  # also NaN
        raise ConfigError(
            f"{name}: a context that is computed in pieces gives other logits than all at once, "
            f"by {apart:.2g} of their spread"
        )
    return forward


def _at_once(network: PreTrainedModel) -> Tensor:
    ids = torch.tensor([_sample_ids(network)], device=network.device)
    inputs = {}
    if reads_whole(network):  # the first piece is a prompt
        inputs["token_type_ids"] = torch.ones_like(ids)
        inputs["token_type_ids"][:, : _CHUNKS[0]] = 0
    logits: Tensor = network(input_ids=ids, use_cache=False, **inputs).logits[0]
    return logits


def _check_parts(network: PreTrainedModel, name: str, found: Tensor) -> None:
    """Raise ConfigError if a split model gives other logits than the whole one: its plan may not fit its code."""
    with whole_weights(network):
        expected = _at_once(network)
    apart, bound = distance(found, expected, quantised=False)
    if not apart <= bound:  # also NaN
        raise ConfigError(
            f"handler.tensorParallel: {name}: the split model gives other logits than the whole one, by {apart:.2g} of their"
            " spread; leave the key out"
        )


def _in_pieces(network: PreTrainedModel, forward: Forward) -> Tensor:
    """Return the logits of the sample, computed in pieces, with another session's steps between them.

    A model with recurrent layers also goes back, and computes the last pieces again.
    """
    ids = _sample_ids(network)
    kv, other = (KVCache(forward.layout, network.device) for _ in range(2))
    pieces = []

    def compute(stop: int, count: int) -> Tensor:
        forward(ids[:1], [Span(other, other.length, 1)], None, [0])
        span = Span(kv, stop - count, count, forward.prompt_blocks(stop) if stop == count else ())
        return forward(ids[stop - count : stop], [span], None, list(range(count)))

    steps = list(zip(itertools.accumulate(_CHUNKS), _CHUNKS, strict=True))
    for stop, count in steps:
        pieces.append(compute(stop, count))
        if kv.recurrent is not None and stop == _BACK:
            kv.recurrent.keep(stop)
    if kv.recurrent is not None:
        kv.truncate(_BACK + 1)
        again = [compute(stop, count) for stop, count in steps if stop > _BACK]
        pieces[-len(again) :] = again
    return torch.cat(pieces)


def distance(found: Tensor, expected: Tensor, *, quantised: bool) -> tuple[float, float]:
    """Return the distance of logits `(tokens, vocabulary)`, relative to their spread, and its bound.

    In half precision rounding alone can send a token to another expert, so the median token counts. So it does where a model is
    quantised, and rounds its activations.
    """
    spread = (expected - expected.mean(-1, keepdim=True)).float().norm(dim=-1)
    errors = (found - expected).float().norm(dim=-1) / spread
    if expected.dtype is torch.float32 and not quantised:
        return float(errors.max()), _TOLERANCE
    return float(errors.median()), _HALF_TOLERANCE


def _sample_ids(network: PreTrainedModel) -> list[int]:
    vocabulary = network.config.get_text_config(decoder=True).vocab_size
    return [(31 + 17 * i) % vocabulary for i in range(sum(_CHUNKS))]
