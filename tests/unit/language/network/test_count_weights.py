"""The progress of reading weights."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.support.tiny.small import save
from tests.support.tiny.text import llama
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.network.load import load_model


class _Report:
    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []
        self.shares: list[float] = []

    def begin(self, name: str, num_bytes: int = 0) -> None:
        self.steps.append((name, num_bytes))

    def advance(self, share: float) -> None:
        self.shares.append(share)


def test_a_model_that_loads_reports_its_weights(tmp_path: Path) -> None:
    """The first step has the bytes of the files, and its share grows from 0 to 1."""
    folder, report = save(llama(), tmp_path), _Report()
    load_model(HandlerConfig(model=str(folder)), folder, torch.device("cpu"), report)
    size = (folder / "model.safetensors").stat().st_size
    assert report.steps[0] == ("loading the weights", size)
    assert [name for name, _ in report.steps[1:]] == [
        "checking the model",
        "compiling and checking kernels",
    ]
    assert report.shares == sorted(report.shares)
    assert (report.shares[0], report.shares[-1]) == (0.0, 1.0)
    assert len(report.shares) > 5
