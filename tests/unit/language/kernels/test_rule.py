"""What a token sees: its own session's tokens up to itself, within a window and a chunk."""

from __future__ import annotations

import pytest
import torch

from ts_stateful.language.kernels.rule import Masks, Reach, Rule
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.layout import KVLayout, LayerShape
from ts_stateful.language.kv.spans import Block, Span

LAYOUT = KVLayout((LayerShape(1, 4, 4),), torch.float32)
WHOLE = KVLayout((LayerShape(1, 4, 4),), torch.float32, per_prompt=True)


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


@pytest.mark.parametrize("layout", [LAYOUT, WHOLE], ids=["image", "prompt"])
@pytest.mark.parametrize("window", [None, 3])
def test_tokens_of_a_block_see_one_another(layout: KVLayout, window: int | None) -> None:
    """Ahead all of it; backwards those of an image as far as the window reaches, those of a prompt all of it."""
    reach, count = Reach(window), 6
    span = Span(KVCache(layout, torch.device("cpu")), 0, 9, [Block(0, count, only_windowed=False)])
    expected = [
        [
            sees(reach, query, key)
            or (query < count and key < count and (key > query or layout.per_prompt))
            for key in range(9)
        ]
        for query in range(9)
    ]
    made = Masks([span]).of(0, reach)
    assert made is not None
    assert made.tolist() == expected


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("window", [None, 3])
def test_a_whole_prompt_needs_no_mask(window: int | None, softcap: float | None) -> None:
    """One without dimensions lets all tokens see all keys."""
    blocks = [Block(0, 6, only_windowed=False)]
    mask = Masks([Span(KVCache(WHOLE, torch.device("cpu")), 0, 6, blocks)]).of(0, Reach(window))
    assert mask is not None
    assert mask.shape == ()
    query, keys, values = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    rule, everything = Rule(None, softcap), torch.ones(6, 6, dtype=torch.bool)
    found, expected = (rule.attend(query, keys, values, each) for each in (mask, everything))
    torch.testing.assert_close(found, expected)
