"""The compiled kernels of a CPU compute what torch's operators compute."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.support.harness import Harness, reference_reply
from tests.support.tiny import llama
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.kernels.cpu.attention import CpuKernels
from ts_stateful.language.kernels.cpu.library import cache_folder, load_library
from ts_stateful.language.kernels.select import verify_kernels
from ts_stateful.language.kernels.states import Kernels
from ts_stateful.language.kv.cache import KVLayout, LayerShape
from ts_stateful.language.network.load import accelerate

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)


def make(layout: KVLayout) -> Kernels:
    library = load_library(cache_folder())
    assert library is not None
    return CpuKernels(layout, library)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "group"),
    [
        (LayerShape(2, 64, 64), 2),
        (LayerShape(4, 32, 32), 1),
        (LayerShape(1, 16, 16), 5),
        (LayerShape(2, 80, 96), 3),
        (LayerShape(1, 256, 128), 8),
    ],
)
def test_they_agree_with_torch(
    shape: LayerShape, group: int, dtype: torch.dtype, threads: int
) -> None:
    """Windows, soft caps, sinks, rows beside chunks, fewer rows than threads."""
    layout = KVLayout((shape,), dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert not verify_kernels(make, layout, group * shape.heads, CPU)
    finally:
        torch.set_num_threads(before)


@needs_compiler
def test_replies_are_those_of_stock_code() -> None:
    """A model that computes with them answers as before, in turns of many lengths side by side."""
    model = llama()
    accelerate(model, HandlerConfig())
    assert isinstance(model.forward.cache.kernels, CpuKernels)
    harness = Harness(model)
    for index in range(4):
        harness.open(f"s{index}")
    for turn in range(2):
        for index in range(4):
            harness.prompt(f"s{index}", "What is it? " * (1 + 3 * index + turn), max_new_tokens=12)
            reference_reply(model, harness, f"s{index}", 12)


def test_what_they_cannot_compute_is_left_to_torch() -> None:
    """Other dtypes, and dimensions that do not fill a vector."""
    assert CpuKernels.serves(KVLayout((LayerShape(2, 64, 64),), torch.float32))
    assert not CpuKernels.serves(KVLayout((LayerShape(2, 64, 64),), torch.float16))
    assert not CpuKernels.serves(KVLayout((LayerShape(2, 20, 64),), torch.float32))


def test_without_a_compiler_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server starts all the same, and a failing compiler counts as none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert load_library(tmp_path / "cache") is None
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert load_library(tmp_path / "cache") is None
    assert not list((tmp_path / "cache").glob("*.so"))


@needs_compiler
def test_what_was_compiled_is_found_again(tmp_path: Path) -> None:
    """The next start takes the library from the folder."""
    assert load_library(tmp_path) is not None
    (library,) = tmp_path.glob("*.so")
    built_at = library.stat().st_mtime_ns
    assert load_library(tmp_path) is not None
    assert library.stat().st_mtime_ns == built_at
