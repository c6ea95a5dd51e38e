"""The benchmark for GPUs runs on a tiny model without a GPU, and reports if it has nothing to measure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.driver import Driver
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.engine import Bench
from benchmarks.gpu.network import TINY, build
from ts_stateful.config.schema import load_config
from ts_stateful.language.network.load import build_model


def run(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(
        command, cwd=repository, env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_tiny_model_is_measured_on_a_cpu(tmp_path: Path, repository: Path) -> None:
    """Every number is there, in the page and in the raw samples."""
    done = run(repository, "--tiny", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report.md").read_text()
    assert page == done.stdout
    assert "| - |" not in page
    samples = json.loads((tmp_path / "results.json").read_text())["samples"]
    names = {name for name, values in samples.items() if values and min(values) > 0}
    steps = {f"{system}_step_ms_2" for system in ("engine", "generate", "continuous")}
    assert names >= steps | {"engine_first_ms_resident", "engine_first_ms_host", "restore_ms"}


@pytest.mark.slow
def test_what_does_not_fit_leaves_nothing_for_the_next_sample() -> None:
    """Sessions whose turns continue would slow down the next sample."""
    device = torch.device("cpu")
    model = build_model("llava", *build(TINY, device, torch.float32))
    budget = 2 * (TINY.history + 100) * model.forward.layout.token_bytes
    config = load_config({"batchSize": 4, "handler": {"deviceCacheBytes": budget}})
    with Driver(model, config) as driver:
        bench = Bench(driver, device, TINY.history)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="does not fit"):
                bench.decode_ms(3, 2)
            bench.clear()
            assert len(driver.engine.table) == 0
            assert not driver.engine.busy
        assert bench.decode_ms(1, 2) > 0


def test_without_a_gpu_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the remedy, and the exit status differs from a measurement's."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 2
    message = capsys.readouterr().err
    assert "no NVIDIA GPU" in message
    assert "--tiny" in message
