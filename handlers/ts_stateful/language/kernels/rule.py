"""Attention of one session's new tokens, by torch's operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ts_stateful.language.kv.spans import Span

__all__ = ["Bias", "Masks", "Reach", "Rule"]


class Bias(Protocol):
    """Numbers that are added to the scores of keys."""

    def of(self, num_keys: int) -> Tensor:
        """Return the biases of a session's keys, `(heads, 1, num_keys)`."""
        ...


class Rule(NamedTuple):
    """A layer's own arguments of the library's attention interface."""

    scale: float | None
    softcap: float | None = None
    sinks: Tensor | None = None
    bias: Bias | None = None

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention of one session's new tokens, causal without a mask; `(1, tokens, heads, value_dim)`.

        A mask without dimensions lets all tokens see all keys.
        """
        if self.softcap is not None or self.sinks is not None:
            return self._attend_plainly(query, keys, values, mask).transpose(1, 2)
        if self.bias is not None:
            return self._attend_biased(self.bias, query, keys, values, mask).transpose(1, 2)
        _, heads, num_tokens, dim = query.shape
        if mask is None and num_tokens > 1:
            return scaled_dot_product_attention(
                query, keys, values, is_causal=True, scale=self.scale, enable_gqa=True
            ).transpose(1, 2)
        # Heads that share keys become tokens: no key is read twice. Some GPU backends take no mask together with shared keys.
        groups = query.reshape(1, keys.shape[1], -1, dim)
        mask = mask.repeat(heads // keys.shape[1], 1) if mask is not None and mask.dim() else None
        output = scaled_dot_product_attention(groups, keys, values, mask, scale=self.scale)
        return output.reshape(1, heads, num_tokens, -1).transpose(1, 2)

    def _attend_biased(
        self, bias: Bias, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        added, num_tokens = bias.of(keys.shape[2]), query.shape[2]
        if mask is None and num_tokens > 1:
            mask = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=query.device).tril()
        if mask is not None:
            added = added.masked_fill(~mask, -math.inf)
        return scaled_dot_product_attention(
            query, keys, values, added.to(query.dtype), scale=self.scale, enable_gqa=True
        )

    def _attend_plainly(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Compute the same step by step, as the library's eager attention does."""
        _, heads, num_tokens, dim = query.shape
        scale = dim**-0.5 if self.scale is None else self.scale
        groups = query.reshape(1, keys.shape[1], -1, num_tokens, dim)
        scores = groups @ keys.unsqueeze(2).transpose(-1, -2) * scale
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if mask is None and num_tokens > 1:
            mask = scores.new_ones(num_tokens, num_tokens, dtype=torch.bool).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        if self.sinks is not None:
            sinks = self.sinks.view(1, keys.shape[1], -1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, sinks], dim=-1)
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
        output = weights[..., : keys.shape[2]] @ values.unsqueeze(2)
        return output.reshape(1, heads, num_tokens, -1)


class Reach(NamedTuple):
    """The tokens before it that a token sees: the last `window`, and those of its own chunk of `chunk` tokens; None: all."""

    window: int | None = None
    chunk: int | None = None

    def first(self, position: int) -> int:
        """Return the first position that a token sees."""
        after_window = position + 1 - self.window if self.window else 0
        in_chunk = position // self.chunk * self.chunk if self.chunk else 0
        return max(0, after_window, in_chunk)

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return True where a query at a position sees a key, `(queries, keys)`; `queries` is `(n, 1)`."""
        mask = keys <= queries
        if self.window:
            mask &= keys > queries - self.window
        if self.chunk:
            mask &= keys // self.chunk == queries // self.chunk
        return mask


class Masks:
    """The keys that each token of a span may see, made once a step for all layers."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self.counts = [span.num_tokens for span in spans]
        self._made: dict[tuple[int, Reach], Tensor | None] = {}

    def of(self, index: int, reach: Reach) -> Tensor | None:
        """Return `(num_tokens, keys)`, True where a token of span `index` sees a key; None for plain causal.

        The keys begin with the first that the first token sees. Where every token sees every key, it has no dimensions.
        """
        key = index, reach
        if key not in self._made:
            self._made[key] = self._make(self._spans[index], reach)
        return self._made[key]

    def _make(self, span: Span, reach: Reach) -> Tensor | None:
        blocks = [block for block in span.blocks if reach.window or not block.only_windowed]
        if span.start == reach.first(span.stop - 1) == 0 and not blocks:
            return None  # causal attention from the beginning needs no mask
        device, first = span.kv.device, reach.first(span.start)
        if span.kv.per_prompt and any(block[:2] == (0, span.stop) for block in blocks):
            return torch.ones((), dtype=torch.bool, device=device)
        queries = torch.arange(span.start, span.stop, device=device).unsqueeze(1)
        keys = torch.arange(first, span.stop, device=device)
        mask = reach.mask(queries, keys)
        for start, stop, _ in blocks:
            rows = slice(start - span.start, stop - span.start)
            columns = slice(start - first, stop - first)
            # Backwards, tokens of an image see as far as a window reaches, those of a whole prompt farther.
            mask[rows, columns] |= (keys[columns] > queries[rows]) | span.kv.per_prompt
        return mask
