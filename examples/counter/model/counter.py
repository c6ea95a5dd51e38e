"""A running sum: the smallest model with a state."""

from __future__ import annotations

import torch


class Counter(torch.nn.Module):
    """Adds up the numbers of each sequence."""

    def forward(
        self, number: torch.Tensor, total: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One step of as many sequences as there are rows; both tensors are (rows, 1), INT64.

        Returns:
            The output `sum`, and the new state `total`.
        """
        total = total + number
        return total, total
