"""Sparse attention with an index: the tokens that each token attends to, for many sessions in one pass.

A model with an index keeps a further key of every token. Stock code scores earlier tokens by these keys, and attends to the few
with the highest scores alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ts_stateful.language.kernels.rule import Masks, Reach
from ts_stateful.language.kv.spans import Span

__all__ = ["PerSession", "narrow", "update_index"]


class PerSession:
    """Tensors `(1, tokens, ...)` of the sessions of a step, with which stock code computes as with one tensor.

    Sessions differ in their numbers of keys. So every operation is applied to each of them: the choice is that of stock code
    for the session alone.
    """

    def __init__(self, parts: Sequence[Tensor], masks: Masks) -> None:
        self.parts = parts
        self._masks = masks

    @property
    def shape(self) -> torch.Size:
        """The shape of the longest."""
        return max((part.shape for part in self.parts), key=lambda shape: shape[-1])

    def masked_fill(self, mask: Tensor, value: float) -> PerSession:
        """Hide from each token what comes after it, in scores `(1, tokens, keys)`."""
        parts = [
            part if part.shape[1] == 1 else part.masked_fill(~self._mask(index, part), value)
            for index, part in enumerate(self.parts)
        ]
        return PerSession(parts, self._masks)

    def topk(self, k: int, dim: int) -> _Highest:
        """Return the indices of the `k` highest, or of all where a session has fewer."""
        return _Highest(self._each(lambda part: part.topk(min(k, part.shape[dim]), dim).indices))

    def __mul__(self, other: float) -> PerSession:
        return self._each(lambda part: part * other)

    def __getattr__(self, name: str) -> Callable[..., PerSession]:
        """Return a method of tensors, applied to each."""
        method = getattr(Tensor, name)
        return lambda *args, **kwargs: self._each(lambda part: method(part, *args, **kwargs))

    @classmethod
    def __torch_function__(
        cls,
        function: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> PerSession:
        """Apply one of torch's functions to each, with the session's tokens of tensors `(1, tokens, ...)`."""
        tensors = next(arg for arg in args if isinstance(arg, cls))
        counts = tensors._masks.counts
        columns = [
            arg.parts
            if isinstance(arg, cls)
            else arg.split(counts, dim=1)
            if isinstance(arg, Tensor)
            else [arg] * len(counts)
            for arg in args
        ]
        parts = [function(*row, **(kwargs or {})) for row in zip(*columns, strict=True)]
        return cls(parts, tensors._masks)

    def _each(self, function: Callable[[Tensor], Tensor]) -> PerSession:
        return PerSession([function(part) for part in self.parts], self._masks)

    def _mask(self, index: int, part: Tensor) -> Tensor:
        mask = self._masks.of(index, Reach())
        return _causal(part) if mask is None else mask


class _Highest(NamedTuple):
    indices: PerSession


def narrow(
    chosen: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return one session's keys and values `(1, heads, keys, dim)` and its mask, without what was not chosen.

    `chosen` has the indices of keys, `(1, tokens, count)`. Those after a token, which fill up the first rows, stay hidden.
    """
    count, length = chosen.shape[2], keys.shape[2]
    if count == length:
        return keys, values, mask
    if chosen.shape[1] == 1:
        few = chosen[0, 0].sort().values
        return keys.index_select(2, few), values.index_select(2, few), None
    picked = torch.zeros(chosen.shape[1], length, dtype=torch.bool, device=keys.device)
    picked.scatter_(1, chosen[0].long(), True)
    return keys, values, picked & (_causal(picked[None]) if mask is None else mask)


def update_index(keys: Tensor, spans: Sequence[Span], masks: Masks, layer: int) -> PerSession:
    """Write the keys of a layer's index, `(1, tokens, dim)`, and return those of all tokens of each session."""
    seen = []
    for (kv, start, count, _), new in zip(spans, keys.split(masks.counts, dim=1), strict=True):
        states = kv.index(layer)
        states[:, start : start + count] = new
        seen.append(states[:, : start + count])
    return PerSession(seen, masks)


def _causal(rows: Tensor) -> Tensor:
    """Return the mask of a session's first tokens, `(tokens, tokens)`, for `rows` of `(1, tokens, tokens)`."""
    return torch.ones(rows.shape[1:], dtype=torch.bool, device=rows.device).tril()
