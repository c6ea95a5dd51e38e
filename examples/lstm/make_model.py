"""Trains the forecaster on noisy sines of every amplitude, period and phase, and saves it as TorchScript; takes seconds.

Owns the model and its data. Writes model/model.pt, and series.csv: a sine that it was not trained on.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn

HERE = Path(__file__).resolve().parent
HIDDEN = 32
HORIZON = 8
NOISE = 0.05
_STEPS, _BATCH, _LENGTH = 600, 64, 96


class Forecaster(nn.Module):
    """Reads a series as it comes and forecasts how it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, HORIZON)

    def forward(
        self, values: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One step: new values of each series.

        Args:
            values: (rows, new values).
            h, c: (1, rows, HIDDEN), the states of `nn.LSTM`, which has its rows in dimension 1.

        Returns:
            The next HORIZON values (rows, HORIZON), and the new states.
        """
        hidden, (h, c) = self.lstm(values.unsqueeze(-1), (h, c))
        return self.head(hidden[:, -1]), h, c


def sines(count: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """(count, length) noisy sines: amplitudes from 0.5 to 1.5, periods from 10 to 40 values."""

    def uniform(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(count, 1, generator=generator)

    time = torch.arange(length).float()
    clean = uniform(0.5, 1.5) * torch.sin(2 * math.pi * (time / uniform(10, 40) + uniform(0, 1)))
    return clean + NOISE * torch.randn(count, length, generator=generator)


def train(model: Forecaster, generator: torch.Generator) -> float:
    """Teaches it to forecast behind every value of a series; returns the last mean squared error."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    loss = torch.zeros(())
    for _ in range(_STEPS):
        series = sines(_BATCH, _LENGTH, generator)
        hidden, _ = model.lstm(series[:, :-HORIZON].unsqueeze(-1))
        coming = series[:, 1:].unfold(1, HORIZON, 1)  # (batch, length - HORIZON, HORIZON)
        loss = torch.nn.functional.mse_loss(model.head(hidden), coming)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return float(loss.detach())


def main() -> None:
    """Trains and saves."""
    torch.set_num_threads(1)  # handing so little work to another thread costs more than it saves
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Forecaster()
    error = train(model, generator)
    model.eval()
    path = HERE / "model" / "model.pt"
    path.parent.mkdir(exist_ok=True)
    torch.jit.script(model).save(str(path))
    values = sines(1, 80, torch.Generator().manual_seed(2))[0].tolist()
    (HERE / "series.csv").write_text("".join(f"{value:.3f}\n" for value in values))
    print(f"{path}: {path.stat().st_size:,} bytes, root of the mean squared error {error**0.5:.3f}")


if __name__ == "__main__":
    main()
