"""The recurrent model whose steps are measured, and its declaration.

It is an LSTM of about a million parameters that reads one frame a step, like a model of keywords or gestures.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

__all__ = ["FRAME", "HANDLER", "OUTPUT", "THREADS", "build", "frames", "initial", "load"]

FRAME, OUTPUT = "frame", "scores"
THREADS: Final = 1  # the engine's own choice for so small a model
_INPUTS, _HIDDEN, _LAYERS, _OUTPUTS = 64, 288, 2, 16
_FILE = "model.pt"

# The settings that users write under `handler:`.
HANDLER: Final[dict[str, Any]] = {
    "model": _FILE,
    "threads": THREADS,
    "inputs": [{"name": FRAME, "shape": [_INPUTS]}],
    "outputs": [{"name": OUTPUT, "shape": [_OUTPUTS]}],
    "states": [{"name": name, "shape": [_LAYERS, _HIDDEN], "rowsDim": 1} for name in ("h", "c")],
}


class Recurrent(nn.Module):
    """Two layers of LSTM and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(_INPUTS, _HIDDEN, num_layers=_LAYERS)
        self.head = nn.Linear(_HIDDEN, _OUTPUTS)

    def forward(self, frame: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run one step of all rows.

        Args:
            frame: (rows, 64).
            h, c: (2, rows, 288), the states of `nn.LSTM`.

        Returns:
            Scores (rows, 16), and the new states.
        """
        hidden, (h, c) = self.lstm(frame.unsqueeze(0), (h, c))
        return self.head(hidden[0]), h, c


def build(folder: Path) -> Path:
    """Write the model, as TorchScript, into `folder`, which is otherwise empty; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit")
        torch.jit.script(Recurrent().eval()).save(str(folder / _FILE))
    return folder


def load(folder: Path) -> nn.Module:
    """Load the model that `build` wrote."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module: nn.Module = torch.jit.load(folder / _FILE)
    return module.eval()


def frames(count: int) -> Tensor:
    """Return inputs of so many sequences: `(count, 64)`."""
    return torch.randn(count, _INPUTS, generator=torch.Generator().manual_seed(1))


def initial(num_rows: int) -> list[Tensor]:
    """Return the first states of sequences: two of `(2, rows, 288)`."""
    return [torch.zeros(_LAYERS, num_rows, _HIDDEN) for _ in range(2)]
