"""Choice of tokens from logits: greedy, or temperature, top-k and top-p, vectorized over rows.

A row's random number depends on its seed and its position only. So a turn gives the same text in any batch, and after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ts_stateful.language.kv.to_device import to_device

__all__ = ["SamplingRow", "sample", "uniform"]

_MASK = 2**64 - 1


class SamplingRow(NamedTuple):
    """Sampling settings of one row; `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    position: int = 0


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) from a seed and a position: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    z = (seed * 0xD1342543DE82EF95 + (position + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) / 2**53


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """Return the next token of every row; `logits` is `(rows, vocabulary)`. Waits for the device once, for the tokens."""
    tokens = _likeliest(logits)
    drawn = [index for index, row in enumerate(rows) if row.temperature > 0]
    if drawn:
        chosen = to_device(drawn, logits.device)
        tokens[chosen] = _draw(logits[chosen].float(), [rows[index] for index in drawn])
    result: list[int] = tokens.tolist()
    return result


def _likeliest(logits: Tensor) -> Tensor:
    """Return the token with the highest logit of every row, the first of equal ones."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return torch.from_numpy(logits.numpy().argmax(axis=-1))  # in a sixth of torch's time
    return logits.argmax(dim=-1)


def _draw(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    vocabulary = logits.shape[-1]
    numbers = [
        (
            row.temperature,
            row.top_k or vocabulary,
            row.top_p,
            row.min_p,
            uniform(row.seed, row.position),
        )
        for row in rows
    ]
    columns = to_device(torch.tensor(numbers, dtype=torch.float64), logits.device)
    temperature, top_k, top_p, min_p, drawn = columns.split(1, dim=1)  # (rows, 1)
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = (ordered.double() / temperature).softmax(dim=-1)
    probabilities = probabilities * (torch.arange(vocabulary, device=logits.device) < top_k)
    before = probabilities.cumsum(dim=-1) - probabilities
    total = probabilities.sum(dim=-1, keepdim=True)
    # Top-p keeps the smallest head whose mass reaches p: every token with a mass below p before it.
    probabilities = probabilities * (before < top_p * total)
    # Min-p drops what is less likely than this share of the likeliest (Nguyen et al., arXiv 2407.01082).
    probabilities = probabilities * (probabilities >= min_p * probabilities[:, :1])
    cumulative = probabilities.cumsum(dim=-1)
    ranks = torch.searchsorted(cumulative, drawn * cumulative[:, -1:], right=True)
    return order.gather(1, ranks.clamp(max=vocabulary - 1)).squeeze(1)
