"""The passes that a stock model can take for many sessions, verified when it is loaded."""

from __future__ import annotations

import logging

from torch import Tensor
from transformers import PreTrainedModel

from ts_stateful.language.kernels.alibi import exchange_biased
from ts_stateful.language.kernels.attention import FLAT
from ts_stateful.language.kernels.choosers import all_chosen, few_chosen
from ts_stateful.language.kernels.latent import keep_latents
from ts_stateful.language.kernels.own_attention import exchange_methods
from ts_stateful.language.kernels.samples import apart, sample
from ts_stateful.language.kv.layout import KVLayout
from ts_stateful.language.network.forward import Batching, Forward
from ts_stateful.language.network.layer_kinds import (
    INDEXED,
    RECURRENT,
    layer_kinds,
    layer_windows,
    short_chunks,
)

__all__ = ["find_forward"]

logger = logging.getLogger(__name__)

# Tokens of the sequences by which passes are verified, side by side, in two passes, or three of a batch.
_COUNTS = (4, 1), (2, 2), (1, 1)
_BATCH_COUNTS = (4, 1, 1), (2, 1, 1), (7, 1, 1)
_FLAT_KINDS = {"full_attention", "sliding_attention", "chunked_attention", "dummy", INDEXED}
_SHORT_CHUNK = 3  # tokens: the samples reach beyond it


def find_forward(network: PreTrainedModel, layout: KVLayout) -> Forward:
    """Return the passes through a model, for many sessions at once as far as its logits stay the same; log why not in all."""
    config = network.config.get_text_config(decoder=True)
    batching = Batching()
    alone = Forward(network, layout, config._attn_implementation, batching)
    others = layer_kinds(config) - _FLAT_KINDS
    take_one = f"its layers of {', '.join(sorted(others))} take one session at a time"
    if alone.stock_attention not in ("sdpa", "eager"):
        reason = f"its attention is {alone.stock_attention}, not sdpa or eager"
    elif others - RECURRENT:
        reason = take_one
    else:
        keep_latents(network)
        exchange_methods(network)
        exchange_biased(network)
        with all_chosen(network):
            batching, reason = _verify_batched(alone) if others else _verify_flat(alone)
    if reason:
        config._attn_implementation = alone.stock_attention
        logger.warning("every session gets its own forward pass: %s", reason)
        return alone
    if others:
        logger.info("one forward pass for all replies, and one for each prompt: %s", take_one)
    return alone.with_batching(batching)


def _verify_batched(alone: Forward) -> tuple[Batching, str]:
    """Try a pass for the next tokens of many sessions; return how its logits differ."""
    batching = Batching(batched=True)
    expected, _ = sample(alone, _BATCH_COUNTS)
    alone.text_config._attn_implementation = FLAT
    try:
        found, _ = sample(alone.with_batching(batching), _BATCH_COUNTS)
    except Exception as error:  # stock code that was not made for it may raise anything
        logger.debug("one pass for all replies failed", exc_info=error)
        return batching, f"{type(alone.network).__name__} takes no batch of sessions: {error}"
    return batching, _difference(alone, found, expected)


def _verify_flat(alone: Forward) -> tuple[Batching, str]:
    """Try the attention of many sessions; return how its logits differ."""
    config, batching = alone.text_config, Batching(flat=True)
    with short_chunks(config, _SHORT_CHUNK), few_chosen(alone.network):
        expected, _ = sample(alone, _COUNTS)
        for attention in (FLAT, alone.stock_attention):  # Falcon never asks, and calls torch itself
            config._attn_implementation = attention
            flat = alone.with_batching(batching)
            try:
                found, _ = sample(flat, _COUNTS)
                break
            except Exception as error:  # stock code that was not made for it may raise anything
                logger.debug("one pass for all sessions failed", exc_info=error)
        else:
            return batching, (
                f"{type(alone.network).__name__} computes its attention by code of its own, "
                "which takes one session at a time"
            )
    layers = flat.cache.states or ()
    # The samples are too short to reach the end of a window, so every layer that has one must pass it.
    given, windows = [states.window for states in layers], layer_windows(config)
    if given != windows:
        return (
            batching,
            f"its attention receives windows {given}, not its configuration's {windows}",
        )
    batching = Batching(flat=True, for_kernels=all(states.for_kernels for states in layers))
    return batching, _difference(alone, found, expected)


def _difference(forward: Forward, found: Tensor, expected: Tensor) -> str:
    differ = apart(found, expected, forward.dtype)
    return differ and f"in one pass for all {differ}"
