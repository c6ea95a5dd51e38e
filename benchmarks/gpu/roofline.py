"""The expectation for GPUs that were not at hand: `python -m benchmarks.gpu.roofline` prints it as a table in Markdown.

A step takes as long as its bytes take to be read, or its multiplications to be done, whichever is longer (Williams, Waterman,
Patterson: Roofline, 2009). Nothing is measured here. Bandwidths and rates are those of NVIDIA's datasheets, which no program
reaches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from benchmarks.gpu.network import FULL

__all__ = ["DEVICES", "MODEL", "Device", "Text", "table"]

_HISTORY, _NUM_NEW = FULL.history, FULL.num_new
_GB = 1e9


class Device(NamedTuple):
    """A GPU: bytes of memory, bytes a second from it and from pinned host memory, bfloat16 operations a second, dense."""

    name: str
    memory: float
    bandwidth: float
    host_bandwidth: float
    flops: float


class Text(NamedTuple):
    """The text part of a model in bfloat16, of which a step reads all weights but the embeddings."""

    layers: int
    hidden: int
    intermediate: int
    vocabulary: int

    @property
    def num_weights(self) -> int:
        """The weights that each token is multiplied by: of attention, of the MLP, and of the head."""
        layer = 4 * self.hidden**2 + 3 * self.hidden * self.intermediate
        return self.layers * layer + self.vocabulary * self.hidden

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of a token."""
        return 2 * 2 * self.layers * self.hidden


DEVICES: Final = (
    Device("L4", 24 * _GB, 300 * _GB, 32 * _GB, 121e12),
    Device("L40S", 48 * _GB, 864 * _GB, 32 * _GB, 362e12),
    Device("A100 SXM, 80 GB", 80 * _GB, 2039 * _GB, 32 * _GB, 312e12),
    Device("H100 SXM", 80 * _GB, 3350 * _GB, 64 * _GB, 989e12),
    Device("H200 SXM", 141 * _GB, 4800 * _GB, 64 * _GB, 989e12),
)
MODEL: Final = Text(
    layers=FULL.text["num_hidden_layers"],
    hidden=FULL.text["hidden_size"],
    intermediate=FULL.text["intermediate_size"],
    vocabulary=FULL.text["vocab_size"],
)


def step_s(device: Device, model: Text, tokens: int, history: int) -> float:
    """Return the least seconds of a pass that adds `tokens` to sessions that have `history` tokens together."""
    states = history * model.token_bytes
    read = (2 * model.num_weights + states) / device.bandwidth
    return max(read, 2 * model.num_weights * tokens / device.flops)


def fits(device: Device, model: Text, history: int) -> bool:
    """Return True if weights, embeddings and states of `history` tokens fit in nine tenths of the memory."""
    weights = 2 * (model.num_weights + model.vocabulary * model.hidden)
    return weights + history * model.token_bytes < 0.9 * device.memory


def table(model: Text = MODEL) -> str:
    """Return the table for all devices, ready for the documents."""
    return "\n".join(_lines(model))


def _lines(model: Text) -> Iterator[str]:
    rows = " / ".join(map(str, FULL.rows))
    yield (
        f"| GPU | tokens/s of {rows} rows, 80 % of the bound | ms to prefill {_HISTORY:,} tokens"
        f" | ms to read {_HISTORY:,} tokens' states from host memory | ms of a pass of {_NUM_NEW} tokens after them |"
    )
    yield "|---|---|---|---|---|"
    for device in DEVICES:
        cells = [
            device.name,
            " / ".join(_rate(device, model, count) for count in FULL.rows),
            f"{1000 * step_s(device, model, _HISTORY, 0):.0f}",
            f"{1000 * _HISTORY * model.token_bytes / device.host_bandwidth:.0f}",
            f"{1000 * step_s(device, model, _NUM_NEW, _HISTORY):.1f}",
        ]
        yield f"| {' | '.join(cells)} |"


def _rate(device: Device, model: Text, num_rows: int) -> str:
    history = num_rows * _HISTORY
    if not fits(device, model, history):
        return "-"
    return f"{0.8 * num_rows / step_s(device, model, num_rows, history):,.0f}"


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
