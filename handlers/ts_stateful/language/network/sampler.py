"""Choice of tokens from logits: greedy, or temperature, top-k, top-p and min-p, vectorized over rows.

A draw is a race (Gumbel, 1954; https://arxiv.org/abs/1611.00712): each token arrives after a random time with the rate of its
probability, and the first one is taken. The random number of a token depends on it, the seed and the position alone. So a turn
gives the same text in any batch, and after a crash. And logits that differ a little, such as those of guesses, give the same
token nearly always.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ts_stateful.language.kv.host_copies import to_device

__all__ = ["DrawRows", "SamplingRow", "choose_tokens", "keys_of", "sample", "settings_of"]

DrawRows = Callable[..., None]  # of the compiled library: see `cpu_kernels/src/draw.h`
_Numbers = NDArray[Any]
_MASK, _HALF = 2**64 - 1, 2**32 - 1
_FEW = 256  # of the likeliest: with more it is as fast to compute all logits


class SamplingRow(NamedTuple):
    """Sampling settings of one row; `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    position: int = 0

    @property
    def needs_few(self) -> bool:
        """True if few logits decide: the highest, or those whose random numbers are good."""
        return not self.temperature or self.top_k <= _FEW

    def later(self, count: int) -> SamplingRow:
        """Return the settings of the token so many after this one."""
        return self._replace(position=self.position + count)


def keys_of(seed: int, position: int) -> tuple[int, int]:
    """Return two numbers of 32 bits from a seed and a position: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    z = (seed * 0xD1342543DE82EF95 + (position + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    return z >> 32, z & _HALF


def sample(
    logits: Tensor, rows: Sequence[SamplingRow], kernel: DrawRows | None = None
) -> list[int]:
    """Return the next token of every row; `logits` is `(rows, vocabulary)`. Waits for the device once, for the tokens."""
    result: list[int] = choose_tokens(logits, rows, kernel).tolist()
    return result


def choose_tokens(
    logits: Tensor, rows: Sequence[SamplingRow], kernel: DrawRows | None = None
) -> Tensor:
    """Return the tokens of `sample`, int64 `(rows,)`, on the device and without waiting for it."""
    drawn = [index for index, row in enumerate(rows) if row.temperature > 0]
    if len(drawn) == len(rows):
        return _draw(logits.float(), rows, kernel)
    tokens = _likeliest(logits)
    if drawn:
        chosen = to_device(drawn, logits.device)
        some = [rows[index] for index in drawn]
        tokens[chosen] = _draw(logits[chosen].float(), some, kernel)
    return tokens


def _likeliest(logits: Tensor) -> Tensor:
    """Return the token with the highest logit of every row, the first of equal ones."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return torch.from_numpy(logits.numpy().argmax(axis=-1))  # in a sixth of torch's time
    return logits.argmax(dim=-1)


def settings_of(rows: Sequence[SamplingRow], vocabulary: int) -> _Numbers:
    """Return the settings as `Draw` in `cpu_kernels/src/draw.h` has them, float64 `(rows, 6)`."""
    numbers = [
        (
            row.temperature,
            row.top_k if 0 < row.top_k < vocabulary else math.inf,
            row.top_p,
            row.min_p,
            *keys_of(row.seed, row.position),
        )
        for row in rows
    ]
    return np.array(numbers, np.float64)


def _draw(logits: Tensor, rows: Sequence[SamplingRow], kernel: DrawRows | None) -> Tensor:
    settings = settings_of(rows, logits.shape[-1])
    if kernel is None or logits.device.type != "cpu":
        return _draw_from_all(logits, settings)
    tokens, logits = torch.empty(len(rows), dtype=torch.int64), logits.contiguous()
    own, threads = settings.ctypes.data, torch.get_num_threads()
    kernel(logits.data_ptr(), *logits.shape, own, threads, tokens.data_ptr())
    due = np.flatnonzero(tokens.numpy() < 0)  # they depend on tokens of low probability
    if len(due):
        tokens[due] = _draw_from_all(logits[due], settings[due])
    return tokens


def _draw_from_all(logits: Tensor, settings: _Numbers) -> Tensor:
    _, top_k, top_p, min_p, *_ = settings.T
    is_plain = bool((np.isinf(top_k) & (top_p >= 1) & (min_p <= 0)).all())
    own = to_device(torch.from_numpy(settings), logits.device)
    if is_plain:
        likeliest = logits.amax(dim=-1, keepdim=True).double()
        tokens = torch.arange(logits.shape[-1], device=logits.device)[None]
        probabilities = ((logits.double() - likeliest) / own[:, :1]).exp()
        return _arrivals(tokens, own, probabilities).argmin(-1)
    # A GPU sorts fast, and is not waited for.
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    winners = _arrivals(order, own, _left(ordered.double(), own)).argmin(-1, keepdim=True)
    return order.gather(1, winners)[:, 0]


def _arrivals(tokens: Tensor, settings: Tensor, probabilities: Tensor) -> Tensor:
    """Return when each of these tokens arrives, `(rows, count)`: never, if its probability is 0.

    Its random number is a hash by the finalizer of MurmurHash3, with a key before each of two rounds.
    """
    keys = settings[:, 4:].long()
    mixed = (tokens * 0x9E3779B1 + keys[:, :1]) & _HALF
    mixed = _mixed(_mixed(mixed) ^ keys[:, 1:])
    return -torch.log1p(-(mixed.double() + 0.5) / 2**32) / probabilities


def _mixed(numbers: Tensor) -> Tensor:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        numbers = ((numbers ^ (numbers >> shift)) * factor) & _HALF
    return numbers ^ (numbers >> 16)


def _left(ordered: Tensor, settings: Tensor) -> Tensor:
    """Return the probabilities of tokens, in the likeliest's, from logits in descending order; 0 for those that are dropped."""
    temperature, top_k, top_p, min_p = (settings[:, at : at + 1] for at in range(4))
    probabilities = ((ordered - ordered[:, :1]) / temperature).exp()
    places = torch.arange(ordered.shape[-1], device=ordered.device)
    probabilities = probabilities * (places < top_k)
    before = probabilities.cumsum(-1) - probabilities
    # Top-p keeps the smallest head whose mass reaches p: every token with a mass below p before it.
    probabilities = probabilities * (before < top_p * probabilities.sum(-1, keepdim=True))
    # Min-p drops what is less likely than this share of the likeliest (Nguyen et al., arXiv 2407.01082).
    return probabilities * (probabilities >= min_p * probabilities[:, :1])
