"""Verification that another way of computing steps agrees with the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Final

import torch
from torch import Tensor

from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.layout import KVLayout
from ts_stateful.language.kv.spans import Rows, Span

__all__ = ["verify_choices", "verify_steps"]

_PASSED: Final = 24  # tokens of the pass whose states theirs are like
_STARTS: Final = (0, 1, 37, 130, 600)  # tokens of the sessions
# The sessions of a step, and their numbers of new tokens in turns: many lengths side by side, and one session alone.
_STEPS: Final[tuple[tuple[slice, Sequence[int]], ...]] = (
    (slice(None), (1,)),
    (slice(None, None, -1), (1,)),
    (slice(-1, None), (1,)),
    (slice(None), (5, 1, 2)),
    (slice(-1, None), (9,)),
    (slice(2), (1, 70)),
)
_EMBEDDED_STEPS: Final = ((slice(2), (1, 70)), (slice(1), (1,)))
_FARTHEST: Final = 4096  # tokens: a longer window would take too much memory
# Of the largest number, and of the mean. Stock code rounds to bfloat16 between operators, which alone differs from float32 by
# some 2 percent, and by up to 12 at single tokens of a trained model.
_TOLERANCE: Final = {torch.float32: (1e-4, 1e-4), torch.bfloat16: (0.3, 0.05)}


def verify_steps(
    model: Callable[[Rows], Tensor],
    other: Callable[[Rows], Tensor | None],
    layout: KVLayout,
    windows: Sequence[int | None],
    vocab_size: int,
    axes: tuple[int, ...] = (1,),
    embed: Callable[[Tensor], Tensor] | None = None,
) -> str:
    """Return how the logits or the states of `other` differ from the model's; empty if they agree. CPU only.

    Sessions begin with random states like the model's own, and some are longer than the layers' windows. `axes` are those of
    positions, each of which gets positions of its own. With `embed`, which maps ids to embeddings, the last steps begin with
    those of other ids, and the first layer's outputs are added to.
    """
    beyond = {window + 3 for window in windows if window and window <= _FARTHEST}
    passed = KVCache(layout, torch.device("cpu"))
    model(_rows([passed], [_PASSED], vocab_size, axes, None))
    ours = _states_like(passed, [*_STARTS, *sorted(beyond)])
    theirs = [kv.copy(kv.length) for kv in ours]
    steps = [(*step, None) for step in _STEPS]
    if embed is not None:
        steps += [(*step, embed) for step in _EMBEDDED_STEPS]
    for chosen, counts, given in steps:
        expected = model(_rows(ours[chosen], counts, vocab_size, axes, given))
        rows = _rows(theirs[chosen], counts, vocab_size, axes, given)
        found = other(rows)
        for span in rows.spans:
            span.kv.length = span.stop
        if found is None:
            return "it returned no logits"
        apart = _apart(found, expected)
        if apart:
            return f"logits differ by {apart}"
    for mine, their in zip(ours, theirs, strict=True):
        for part, counterpart in zip(mine.states, their.states, strict=True):
            apart = _apart(counterpart[:, : mine.length], part[:, : mine.length])
            if apart:
                return f"states differ by {apart}"
    return ""


def verify_choices(
    model: Callable[[Rows], Tensor],
    other: Callable[[Rows], Tensor | None],
    layout: KVLayout,
    vocab_size: int,
    axes: tuple[int, ...] = (1,),
) -> str:
    """Return how most logits of `other` differ from the model's, whose routers choose few experts; empty if they agree.

    Others may differ: see `all_chosen`. Each token is a session's first, so that none depends on another one's experts.
    """
    ours, theirs = ([KVCache(layout, torch.device("cpu")) for _ in range(_PASSED)] for _ in "ab")
    expected = model(_rows(ours, [1], vocab_size, axes, None))
    found = other(_rows(theirs, [1], vocab_size, axes, None))
    if found is None:
        return "it returned no logits"
    rows = (found - expected).abs().amax(-1) <= _TOLERANCE[expected.dtype][0] * expected.abs().max()
    num_same = int(rows.sum())
    return "" if 2 * num_same > len(rows) else f"{num_same} of {len(rows)} choose the same experts"


def _states_like(passed: KVCache, lengths: Sequence[int]) -> list[KVCache]:
    """Return caches of so many tokens: the first one of a pass, and random ones with the means and deviations of its others.

    Trained models attend most to the first token. From states that no pass would write, their layers can make rounding errors
    a thousand times as large.
    """
    generator = torch.Generator().manual_seed(0)
    caches = []
    for length in lengths:
        kv = passed.copy(min(1, length))
        kv.reserve(length)
        for part, written in zip(kv.states, passed.states, strict=True):
            others, drawn = written[:, 1 : passed.length].float(), part[:, 1:length]
            numbers = torch.randn(drawn.shape, generator=generator)
            drawn.copy_(numbers * others.std(1, keepdim=True) + others.mean(1, keepdim=True))
        kv.length = length
        caches.append(kv)
    return caches


def _rows(
    caches: Sequence[KVCache],
    counts: Sequence[int],
    vocab_size: int,
    axes: tuple[int, ...],
    embed: Callable[[Tensor], Tensor] | None,
) -> Rows:
    """Return the next tokens of each session, as many as `counts` has in turns, with embeddings if `embed` is given."""
    spans = [Span(kv, kv.length, count) for kv, count in zip(caches, cycle(counts), strict=False)]
    for span in spans:
        span.kv.reserve(span.stop)
    places = [position for span in spans for position in range(span.start, span.stop)]
    ids = [(3 + 7 * (index + position)) % vocab_size for index, position in enumerate(places)]
    shifts = torch.arange(axes[0]).reshape(*axes, 1)
    positions = torch.tensor(places) + 5 * shifts
    if embed is None:
        return Rows(ids, positions, spans)
    embedded, deepstack = embed(torch.tensor([ids[::-1]])), embed(torch.tensor([ids]))
    return Rows(ids, positions, spans, embedded=embedded, deepstack=deepstack)


def _apart(found: Tensor, expected: Tensor) -> str:
    size, distance = expected.float().abs(), (found.float() - expected.float()).abs()
    kinds: tuple[Callable[[Tensor], Tensor], ...] = (torch.max, torch.mean)
    for kind, tolerance in zip(kinds, _TOLERANCE[expected.dtype], strict=True):
        apart, whole = float(kind(distance)), float(kind(size))
        if not apart <= tolerance * whole:  # also NaN
            return f"{apart:.2g} of {whole:.2g}"
    return ""
