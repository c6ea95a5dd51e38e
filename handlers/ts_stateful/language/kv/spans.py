"""The new tokens of a step, and the addresses of their sessions' states."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.host_copies import to_device

if TYPE_CHECKING:
    from ts_stateful.language.network.sampler import SamplingRow

__all__ = ["Block", "Rows", "Span", "Table", "beginning_of"]

_GROUP = 16  # tokens that kernels multiply at once, most efficiently


class Block(NamedTuple):
    """Tokens `start` to `stop` of a session, an image's or a whole prompt's, that see one another and are computed in one step.

    With `only_windowed` they do so in layers with a window, and see only backwards in the others.
    """

    start: int
    stop: int
    only_windowed: bool


def beginning_of(blocks: Sequence[Block], position: int) -> int:
    """Return the beginning of the block that has this token and the one before it, or else the position."""
    return next((b.start for b in blocks if b.start < position < b.stop), position)


class Span(NamedTuple):
    """New tokens of one session in a step: `num_tokens` of them after the first `start`. `blocks` are those among them."""

    kv: KVCache
    start: int
    num_tokens: int
    blocks: Sequence[Block] = ()

    @property
    def stop(self) -> int:
        """The session's tokens after the step."""
        return self.start + self.num_tokens


class Rows(NamedTuple):
    """The tokens of a step. `positions` is `(1, n)`, or `(3, 1, n)` for models with M-RoPE, on the host.

    `keep` are the tokens after which logits are wanted; None: all. `draws` are the parameters by which the token after each of
    these is chosen: logits that do not decide may be estimates that are lower. None: all are wanted. `embedded`
    `(1, n, hidden)` are the embeddings of tokens some of which stand for parts of an image or clip; None: those of `ids`.
    `deepstack` `(layers, n, hidden)` is added to the hidden states after each of the first layers.
    """

    ids: list[int]
    positions: Tensor
    spans: Sequence[Span]
    keep: Sequence[int] | None = None
    draws: Sequence[SamplingRow] | None = None
    embedded: Tensor | None = None
    deepstack: Tensor | None = None

    def first(self, count: int) -> Rows:
        """Return the first rows of a step in which each session has one token."""
        return Rows(self.ids[:count], self.positions[..., :count], self.spans[:count])

    def pieces(self, most: int) -> Iterator[Rows]:
        """Yield pieces of like sizes, at most `most` tokens, a multiple of 16: one of few tokens would read all weights too."""
        num = len(self.ids)
        if num <= most:
            yield self
            return
        groups, count = -(-num // _GROUP), -(-num // most)
        cuts = [groups * number // count * _GROUP for number in range(count)]
        keep = range(num) if self.keep is None else self.keep
        draws = self.draws
        for first, stop in itertools.pairwise([*cuts, num]):
            kept = [place for place, token in enumerate(keep) if first <= token < stop]
            yield Rows(
                self.ids[first:stop],
                self.positions[..., first:stop],
                list(self._between(first, stop)),
                [keep[place] - first for place in kept],
                None if draws is None else [draws[place] for place in kept],
                None if self.embedded is None else self.embedded[:, first:stop],
                None if self.deepstack is None else self.deepstack[:, first:stop],
            )

    def _between(self, first: int, stop: int) -> Iterator[Span]:
        """Yield the parts of the spans that are tokens `first` to `stop` of the step."""
        begin = 0
        for span in self.spans:
            lower, upper = max(first - begin, 0), min(stop - begin, span.num_tokens)
            if lower < upper:
                yield Span(span.kv, span.start + lower, upper - lower)
            begin += span.num_tokens


@dataclass(frozen=True, eq=False)
class Table:
    """The place of every new token of a step, as kernels read it.

    A *row* is a token whose attention is computed separately: one that is alone in its span, or every one.

    `buffer` is int64, of one dimension, so that one copy brings everything to a device. It consists of:

    - `(num_tokens,)` the span of every token
    - `(num_tokens,)` its position in its session
    - `(num_rows,)` the tokens that are rows, ascending
    - `(num_spans,)` the capacities of the spans' states
    - `(num_layers, 2, num_spans)` the addresses of a layer's keys, then values: `(heads, capacity, dim)` each

    Valid for one step: the spans' states must have room for its tokens, and stay in place until it is computed.
    """

    buffer: Tensor
    num_tokens: int
    num_rows: int
    num_spans: int

    @classmethod
    def of(cls, spans: Sequence[Span], *, all_rows: bool = False) -> Table:
        """Return the table of these spans, on the host; with `all_rows` every token is a row."""
        counts = [span.num_tokens for span in spans]
        ends = itertools.accumulate(counts)
        rows = [end - 1 for end, count in zip(ends, counts, strict=True) if count == 1]
        rows = list(range(sum(counts))) if all_rows else rows
        numbers = [
            *(index for index, count in enumerate(counts) for _ in range(count)),
            *(position for span in spans for position in range(span.start, span.stop)),
            *rows,
            *(span.kv.capacity for span in spans),
        ]
        addresses = np.array([span.kv.addresses for span in spans]).T.ravel()
        buffer = np.concatenate([np.array(numbers, np.int64), addresses])
        return cls(torch.from_numpy(buffer), sum(counts), len(rows), len(spans))

    @property
    def positions(self) -> Tensor:
        """The new tokens' positions in their sessions, `(num_tokens,)`."""
        return self.buffer[self.num_tokens : 2 * self.num_tokens]

    def on(self, device: torch.device) -> Table:
        """Copy the table to a device, without waiting for the copy."""
        return replace(self, buffer=to_device(self.buffer, device))
