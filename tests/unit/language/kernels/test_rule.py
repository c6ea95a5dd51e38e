"""What a token sees: its own session's tokens up to itself, within a window and a chunk."""

from __future__ import annotations

import pytest
import torch

from ts_stateful.language.kernels.rule import Masks, Reach
from ts_stateful.language.kv.cache import KVCache, KVLayout, LayerShape
from ts_stateful.language.kv.spans import Span

LAYOUT = KVLayout((LayerShape(1, 4, 4),), torch.float32)


def sees(reach: Reach, query: int, key: int) -> bool:
    """Return True if a token at one position sees one at another, by the definition."""
    in_window = reach.window is None or query - key < reach.window
    in_chunk = reach.chunk is None or query // reach.chunk == key // reach.chunk
    return key <= query and in_window and in_chunk


@pytest.mark.parametrize("reach", [Reach(), Reach(5), Reach(None, 4), Reach(3, 8)])
@pytest.mark.parametrize(("start", "count"), [(0, 3), (0, 4), (0, 9), (3, 1), (3, 6), (12, 2)])
def test_masks_are_those_of_the_definition(reach: Reach, start: int, count: int) -> None:
    """Spans within a window or chunk, at its end and beyond it."""
    first = reach.first(start)
    assert first == next(key for key in range(start + 1) if sees(reach, start, key))
    span = Span(KVCache(LAYOUT, torch.device("cpu")), start, count)
    made = Masks([span]).of(0, reach)
    expected = [
        [sees(reach, query, key) for key in range(first, span.stop)]
        for query in range(start, span.stop)
    ]
    if made is None:
        assert start == first == 0
        made = torch.ones(count, count, dtype=torch.bool).tril()
    assert made.tolist() == expected
