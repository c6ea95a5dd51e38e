"""A running sum with everything that a declaration can say of a state: a beginning, a file, growth, controls.

Imports nothing of this package: it is a model as users write them.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

HOLD = -1  # a step with this number waits while the gate is closed, and all steps behind it
UNLUCKY = 13  # a step with this number raises
CURIOUS = 1000  # a step with at least this number is told how many rows there are; the server's trial sends small ones


class Ledger(torch.nn.Module):
    """Adds up the numbers of each sequence. The gate is closed while the file `gate` exists; `gate`.held says who waits."""

    def __init__(self, gate: str) -> None:
        super().__init__()
        self._trial_lock, self._held = Path(gate), Path(f"{gate}.held")

    def forward(
        self,
        number: torch.Tensor,
        start: torch.Tensor,
        end: torch.Tensor,
        total: torch.Tensor,
        balance: torch.Tensor,
        seen: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """One step; `number`, `total`, `balance` are (rows, 1), `start` and `end` (rows,), `seen` (rows, steps so far).

        Returns:
            The outputs `sum`, `account`, `numbers`, `flags`, `rows` and the new states.
        """
        if (number == UNLUCKY).any():
            raise ValueError("a number that brings bad luck")
        if (number == HOLD).any():
            self._held.touch()
            while self._trial_lock.exists():
                time.sleep(0.002)
        total, balance = total + number, balance - number
        seen = torch.cat([seen, number], dim=1)
        flags = torch.stack([start, end], dim=1)
        rows = torch.where(number[:, 0] >= CURIOUS, len(number), 0)
        return total, balance, seen, flags, rows, total, balance, seen
