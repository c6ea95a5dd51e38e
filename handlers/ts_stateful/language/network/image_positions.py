"""Positions in a prompt with images, of models with M-RoPE."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["image_positions", "knows_positions"]

_TEXT = -1  # an id that is no token's


def knows_positions(rope_index: Callable[..., Any]) -> bool:
    """Return True if a model's `get_rope_index` is one of those that `image_positions` can call."""
    takes = inspect.signature(rope_index).parameters
    return "image_grid_thw" in takes and bool(takes.keys() & {"mm_token_type_ids", "audio_seqlens"})


def image_positions(
    rope_index: Callable[..., Any], ids: Sequence[int], shows: Sequence[int], grids: Tensor
) -> Tensor:
    """Return the positions `(3, 1, n)` of `ids`; `shows` has 1 for every id that stands for a part of an image.

    `grids` are those of the images. Clips have the positions of text.
    """
    if "mm_token_type_ids" in inspect.signature(rope_index).parameters:
        kinds = torch.tensor([list(shows)], dtype=torch.int)
        positions, _ = rope_index(
            torch.tensor([ids]), mm_token_type_ids=kinds, image_grid_thw=grids
        )
    else:
        # It looks for the mark before each image, and would find those in a text, too.
        begins = [*shows[1:], 0]
        marked = [
            token if shown or begun else _TEXT
            for token, shown, begun in zip(ids, shows, begins, strict=True)
        ]
        row = torch.tensor([marked])
        everything = torch.ones_like(row)
        positions, _ = rope_index(row, image_grid_thw=grids, attention_mask=everything)
    found: Tensor = positions.long()
    return found
