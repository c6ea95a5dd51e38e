"""Samples of tokens, by which ways of computing a pass are compared when a model is loaded."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.spans import Rows, Span

if TYPE_CHECKING:  # it is verified with these samples
    from ts_stateful.language.network.forward import Forward

__all__ = ["apart", "prompt_seconds", "sample", "sample_rows"]

# Of the largest logit.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def sample(forward: Forward, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, list[KVCache]]:
    """Feed sequences, each in as many passes as it has numbers of tokens, side by side where the model can.

    Return their last logits, `(sequences, vocabulary)` float32, and states.
    """
    caches = [KVCache(forward.layout, forward.device) for _ in sequences]
    for part, counts in enumerate(zip(*sequences, strict=True)):
        spans = [Span(kv, kv.length, count) for kv, count in zip(caches, counts, strict=True)]
        together = forward.flat or (forward.batched and part > 0)
        groups = [spans] if together else [[span] for span in spans]
        logits = torch.cat([_last_logits(forward, group) for group in groups])
    return logits.float(), caches


def sample_rows(forward: Forward, sequences: Sequence[Sequence[int]]) -> tuple[Rows, Rows]:
    """Return two steps of one more token of each sequence, in another order, with room for it."""
    spans = [Span(kv, kv.length, 1) for kv in sample(forward, sequences)[1]]
    for span in spans:
        span.kv.reserve(span.stop)
    one, other = (
        Rows([first + i for i in range(len(spans))], forward.text_positions(order), order)
        for first, order in ((1, spans), (11, spans[::-1]))
    )
    return one, other


def prompt_seconds(forward: Forward, num_tokens: int) -> float:
    """Return the time of a pass over a prompt."""
    spans = [Span(forward.new_kv(), 0, num_tokens)]
    began_at = time.perf_counter()
    _last_logits(forward, spans)
    return time.perf_counter() - began_at


def _last_logits(forward: Forward, spans: Sequence[Span]) -> Tensor:
    ids = [
        (31 * span.num_tokens + 7 * i) % forward.vocab_size
        for span in spans
        for i in range(span.start, span.stop)
    ]
    ends = itertools.accumulate(span.num_tokens for span in spans)
    return forward(ids, spans, None, [end - 1 for end in ends])


def apart(found: Tensor, expected: Tensor, dtype: torch.dtype) -> str:
    """Return how far logits of a model of this type are apart; an empty text if not too far."""
    largest, distance = float(expected.abs().max()), float((found - expected).abs().max())
    bound = _TOLERANCE.get(dtype, 1e-3) * max(1.0, largest)
    return "" if distance <= bound else f"logits differ by {distance:.2g} of {largest:.2g}"
