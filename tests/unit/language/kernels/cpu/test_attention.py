"""The compiled kernels of a CPU compute what torch's operators compute."""

from __future__ import annotations

import shutil

import pytest
import torch

from tests.support.harness import Harness, reference_reply
from tests.support.kernels import language_kernels
from tests.support.tiny import llama
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.kernels.cpu.attention import CpuKernels
from ts_stateful.language.kernels.rule import Rule
from ts_stateful.language.kernels.select import verify_kernels
from ts_stateful.language.kernels.states import Kernels
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.layout import KVLayout, LayerShape
from ts_stateful.language.kv.spans import Span, Table
from ts_stateful.language.network.load import accelerate

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)


def make(layout: KVLayout) -> Kernels:
    return CpuKernels(layout, language_kernels())


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
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("group", [1, 2, 3, 5, 16, 20])
def test_tokens_of_one_session_are_rows_together(
    group: int, window: int | None, threads: int, dtype: torch.dtype
) -> None:
    """Each attends to the keys up to its own, whichever are computed with it, in parts or not. Only results are rounded."""
    layout = KVLayout((LayerShape(1, 32, 48),), dtype)
    spans = []
    for start, count in ((0, 21), (600, 7), (13, 1), (5, 40)):
        kv = KVCache(layout, CPU)
        kv.reserve(start + count)
        for part in kv.states:
            part.normal_()
        spans.append(Span(kv, start, count))
    query = torch.randn(group, sum(span.num_tokens for span in spans), 32).to(dtype)
    sinks = torch.linspace(-1, 2, group)
    rule, table = Rule(0.3, 5.0, sinks), Table.of(spans, all_rows=True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = make(layout).attend(query, table, 0, rule, window)
    finally:
        torch.set_num_threads(before)
    places = [(span.kv, place) for span in spans for place in range(span.start, span.stop)]
    for row, (kv, place) in enumerate(places):
        seen = slice(max(0, place + 1 - (window or place + 1)), place + 1)
        keys, values = (part[0, seen].float() for part in (kv.keys(0), kv.values(0)))
        scores = 5.0 * (query[:, row].float() @ keys.T * 0.3 / 5.0).tanh()
        weights = torch.cat([scores, sinks[:, None]], 1).softmax(1)[:, :-1]
        expected = (weights @ values).to(dtype)
        rounding = 1e-4 if dtype is torch.float32 else 2**-7  # to a neighbor
        torch.testing.assert_close(found[row], expected, rtol=rounding, atol=1e-4)


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
