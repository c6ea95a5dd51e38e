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
from ts_stateful.language.network.forward import Forward
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
    forward = Forward(network, layout)
    config = forward.text_config
    others = layer_kinds(config) - _FLAT_KINDS
    alone = f"its layers of {', '.join(sorted(others))} take one session at a time"
    if forward.stock_attention not in ("sdpa", "eager"):
        reason = f"its attention is {forward.stock_attention}, not sdpa or eager"
    elif others - RECURRENT:
        reason = alone
    else:
        keep_latents(network)
        exchange_methods(network)
        exchange_biased(network)
        with all_chosen(network):
            reason = _difference_of_batch(forward) if others else _difference(forward)
        forward.flat = not (reason or others)
        forward.batched = bool(others) and not reason
    if reason:
        config._attn_implementation = forward.stock_attention
        logger.warning("every session gets its own forward pass: %s", reason)
    elif others:
        logger.info("one forward pass for all replies, and one for each prompt: %s", alone)
    return forward


def _difference_of_batch(forward: Forward) -> str:
    """Give the model a pass for the next tokens of many sessions; return how its logits differ."""
    expected, _ = sample(forward, _BATCH_COUNTS)
    forward.text_config._attn_implementation = FLAT
    forward.batched = True
    try:
        found, _ = sample(forward, _BATCH_COUNTS)
    except Exception as error:  # stock code that was not made for it may raise anything
        logger.debug("one pass for all replies failed", exc_info=error)
        return f"{type(forward.network).__name__} takes no batch of sessions: {error}"
    finally:
        forward.batched = False
    differ = apart(found, expected, forward.dtype)
    return differ and f"in one pass for all {differ}"


def _difference(forward: Forward) -> str:
    """Give the model the attention of many sessions; return how its logits differ."""
    config = forward.text_config
    with short_chunks(config, forward.cache, _SHORT_CHUNK), few_chosen(forward.network):
        expected, _ = sample(forward, _COUNTS)
        found = _sample_flat(forward, FLAT)
        if found is None:  # Falcon never asks the library, and calls torch itself
            found = _sample_flat(forward, forward.stock_attention)
    if found is None:
        return (
            f"{type(forward.network).__name__} computes its attention by code of its own, "
            "which takes one session at a time"
        )
    layers = forward.cache.states or ()
    forward.windows = [states.window for states in layers]
    forward.for_kernels = all(states.for_kernels for states in layers)
    # The samples are too short to reach the end of a window, so every layer that has one must pass it.
    windows = layer_windows(config)
    if forward.windows != windows:
        return (
            f"its attention receives windows {forward.windows}, not its configuration's {windows}"
        )
    differ = apart(found, expected, forward.dtype)
    return differ and f"in one pass for all {differ}"


def _sample_flat(forward: Forward, attention: str) -> Tensor | None:
    """Return the samples' logits by one pass for all, with this attention; None if the model cannot compute it."""
    forward.text_config._attn_implementation = attention
    forward.flat = True
    try:
        return sample(forward, _COUNTS)[0]
    except Exception as error:  # stock code that was not made for it may raise anything
        logger.debug("one pass for all sessions failed", exc_info=error)
        return None
    finally:
        forward.flat = False
