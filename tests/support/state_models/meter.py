"""Chunks of samples of every length in one pass: padding, masks, lengths, and a state that keeps the last samples alone."""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import pad_sequence

FIXED_ROWS = 4
# A row with such a sample is told how many rows there are; the server's trial sends none.
LOUD = 100.0


class Meter(torch.nn.Module):
    """Measures chunks. Padding is far from every sample, so that whoever forgets the mask is found out."""

    def forward(
        self,
        samples: torch.Tensor,
        mask: torch.Tensor,
        lengths: torch.Tensor,
        kept: torch.Tensor,
        ready: torch.Tensor,
        peak: torch.Tensor,
        recent: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """One step.

        Args:
            samples, mask: (rows, longest chunk).
            lengths, kept: (rows,), of `samples` and of `recent`.
            ready: (rows,), false for rows that only fill the pass up.
            peak: (1, rows): a state with its rows in dimension 1.
            recent: (rows, longest).

        Returns:
            The outputs `loudest`, `halves`, `window`, `window_lengths`, `rows` and the new states.
        """
        loud = samples.masked_fill(~mask, -torch.inf).amax(dim=1)
        peak = torch.maximum(peak, loud.unsqueeze(0))
        windows = [
            torch.cat([old[:before], new[:count]])
            for old, before, new, count in zip(recent, kept, samples, lengths, strict=True)
        ]
        window_lengths = torch.tensor([len(window) for window in windows])
        if len(ready) != FIXED_ROWS:
            raise ValueError("a program that was exported for another number of rows")
        recent = pad_sequence(windows, batch_first=True, padding_value=7.0)
        rows = torch.where(loud >= LOUD, ready.sum(), 0)
        return peak[0], samples / 2, recent, window_lengths, rows, peak, recent
