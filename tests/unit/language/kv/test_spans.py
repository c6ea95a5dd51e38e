"""Pieces of a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ts_stateful.language.kv.spans import Rows, Span

_MOST = 64


@pytest.mark.parametrize("num", [1, 15, 64, 65, 66, 128, 130, 258, 300, 512, 1000])
def test_pieces_are_alike(num: int) -> None:
    """No piece reads all weights for few tokens, and each of two sessions has its tokens in order."""
    states: Any = object()
    spans = [Span(states, 5, num - num // 3), Span(states, 7, num // 3)]
    positions = torch.tensor([[p for s in spans for p in range(s.start, s.stop)]])
    pieces = list(Rows(list(range(num)), positions, spans, [num - 1]).pieces(_MOST))
    sizes = [len(piece.ids) for piece in pieces]
    assert len(sizes) == -(-num // _MOST)
    assert max(sizes) <= _MOST
    assert max(sizes) - min(sizes) < 2 * 16
    assert [token for piece in pieces for token in piece.ids] == list(range(num))
    for piece in pieces:
        written = [p for span in piece.spans for p in range(span.start, span.stop)]
        assert piece.positions.tolist() == [written]
    assert [piece.keep for piece in pieces] == [[]] * (len(pieces) - 1) + [[sizes[-1] - 1]]
