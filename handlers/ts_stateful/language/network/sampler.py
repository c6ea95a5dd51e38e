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

from ts_stateful.language.kv.to_device import to_device

__all__ = ["DrawRows", "SamplingRow", "choose_tokens", "keys_of", "sample", "settings_of"]

DrawRows = Callable[..., None]  # of the compiled library: see `cpu_kernels/src/draw.h`
_Numbers = NDArray[Any]
_Array = Any  # of torch or of numpy
_MASK, _HALF = 2**64 - 1, 2**32 - 1
# Tokens with more than such a share of the likeliest's probability are sorted; those with the first are enough for most rows.
_SHARES = (2.0**-12, 2.0**-24, 0.0)
_FEW = 256


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
        """True if few logits decide: the highest, or in a race of all tokens those whose random numbers are good."""
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
    numbers = settings_of(rows, logits.shape[-1])
    if logits.device.type == "cpu":
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            return torch.from_numpy(_draw_on_cpu(logits, numbers, kernel))
    settings = to_device(torch.from_numpy(numbers), logits.device)
    if all(_is_plain(numbers)):
        first: Tensor = _first(torch, logits.double(), settings)
        return first
    # A GPU sorts fast, and is not waited for.
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    left, _ = _left(torch, ordered.double(), settings)
    winners = _arrivals(torch, order, settings, left).argmin(-1)
    return order.gather(1, winners[:, None])[:, 0]


def _is_plain(settings: _Numbers) -> _Numbers:
    """Return which rows draw from all tokens."""
    _, top_k, top_p, min_p, *_ = settings.T
    plain: _Numbers = np.isinf(top_k) & (top_p >= 1) & (min_p <= 0)
    return plain


def _draw_on_cpu(logits: Tensor, settings: _Numbers, kernel: DrawRows | None) -> _Numbers:
    tokens, due = np.empty(len(settings), np.int64), np.arange(len(settings))
    if kernel is not None:
        logits, threads = logits.contiguous(), torch.get_num_threads()
        own, result = settings.ctypes.data, tokens.ctypes.data
        kernel(logits.data_ptr(), *logits.shape, own, threads, result)
        due = np.flatnonzero(tokens < 0)  # they depend on tokens of low probability
    plain = _is_plain(settings[due])
    if plain.any():
        some, due = due[plain], due[~plain]
        tokens[some] = _first(np, logits[some].double().numpy(), settings[some])
    if not len(due):
        return tokens
    logits, settings = logits[due], settings[due]
    apart = logits - logits.amax(dim=-1, keepdim=True)
    scales = (1 / settings[:, :1]).clip(max=np.finfo(np.float32).max)  # zero times it is no NaN
    relative = apart.mul_(torch.from_numpy(scales).float()).exp_()
    mass = relative.sum(dim=-1, keepdim=True, dtype=torch.float64).numpy()
    values, shares = logits.numpy(), relative.numpy()
    for least in _SHARES if kernel is None else _SHARES[-1:]:  # it has tried the others
        tokens[due], is_known = _draw_from_head(values, shares, settings, mass, least)
        if is_known.all():
            break
        parts = (due, values, shares, settings, mass)
        due, values, shares, settings, mass = (part[~is_known] for part in parts)
    return tokens


def _draw_from_head(
    logits: _Numbers, shares: _Numbers, settings: _Numbers, mass: _Numbers, least: float
) -> tuple[_Numbers, _Numbers]:
    """Return a token of each row and whether it is the one to take, from those whose share is above the least alone.

    A share is a token's probability over the likeliest's; `mass` is the sum of all.
    """
    found = np.flatnonzero(shares > least)
    rows, tokens = np.divmod(found, logits.shape[-1])
    counts = np.bincount(rows, minlength=len(logits))
    places = rows, np.arange(len(found)) - (counts.cumsum() - counts)[rows]
    values = np.full((len(logits), max(1, counts.max())), -np.inf)
    ids = np.zeros(values.shape, np.int64)
    values[places], ids[places] = logits.ravel()[found], tokens
    order = (-values).argsort(axis=-1, kind="stable")  # of equal logits the first comes first
    ordered, ids = (np.take_along_axis(some, order, -1) for some in (values, ids))
    left, is_known = _left(np, ordered, settings, (counts[:, None], mass) if least else None)
    winners = _arrivals(np, ids, settings, left).argmin(-1)
    return np.take_along_axis(ids, winners[:, None], -1)[:, 0], is_known


def _first(xp: Any, logits: _Array, settings: _Array) -> _Array:
    """Return a token of each row, drawn from all of its logits `(rows, vocabulary)` in float64."""
    apart = logits - xp.amax(logits, -1)[:, None]
    tokens = xp.arange(logits.shape[-1], device=logits.device)[None]
    probabilities = xp.exp(apart / settings[:, :1])
    return _arrivals(xp, tokens, settings, probabilities).argmin(-1)


def _arrivals(xp: Any, tokens: _Array, settings: _Array, probabilities: _Array) -> _Array:
    """Return when each of these tokens arrives, `(rows, count)`: never, if its probability is 0.

    Its random number is a hash by the finalizer of MurmurHash3, with a key before each of two rounds.
    """
    keys = xp.asarray(settings[:, 4:], dtype=xp.int64)
    mixed = (tokens * 0x9E3779B1 + keys[:, :1]) & _HALF
    mixed = _mixed(_mixed(mixed) ^ keys[:, 1:])
    return -xp.log1p(-(xp.asarray(mixed, dtype=xp.float64) + 0.5) / 2**32) / probabilities


def _mixed(numbers: _Array) -> _Array:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        numbers = ((numbers ^ (numbers >> shift)) * factor) & _HALF
    return numbers ^ (numbers >> 16)


def _left(
    xp: Any, ordered: _Array, settings: _Array, head: tuple[_Array, _Array] | None = None
) -> tuple[_Array, _Array]:
    """Return the probabilities of tokens, in the likeliest's, 0 for those that the settings drop; and which rows are known.

    `xp` is torch, or numpy, whose calls take a fifth of the time. `ordered` are all logits of a row in float64, descending. Or
    they are the `head` of so many of its highest ones, `(rows, 1)`, which may be too few, and the second is the mass of all, in
    the likeliest's.
    """
    temperature, top_k, top_p, min_p = (settings[:, at : at + 1] for at in range(4))
    probabilities = xp.exp((ordered - ordered[:, :1]) / temperature)
    places = xp.arange(ordered.shape[-1], device=ordered.device)
    probabilities = probabilities * (places < top_k)
    total = probabilities.sum(axis=-1, keepdims=True)
    size, mass = head or (top_k, total)
    has_best = top_k <= size  # those that top-k leaves
    total = xp.where(has_best, total, mass)
    before = probabilities.cumsum(axis=-1) - probabilities
    # Top-p keeps the smallest head whose mass reaches p: every token with a mass below p before it.
    probabilities = probabilities * (before < top_p * total)
    # Min-p drops what is less likely than this share of the likeliest (Nguyen et al., arXiv 2407.01082).
    probabilities = probabilities * (probabilities >= min_p * probabilities[:, :1])
    num_left = (probabilities > 0).sum(axis=-1, keepdims=True)
    return probabilities, (has_best | (xp.isinf(top_k) & (num_left < size)))[:, 0]
