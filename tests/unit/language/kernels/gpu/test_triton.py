"""The Triton kernels compute what torch's operators compute; on a CPU through Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from ts_stateful.language.kernels.attention import StepCache
from ts_stateful.language.kernels.rule import Rule
from ts_stateful.language.kernels.states import Kernels
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.layout import KVLayout, LayerShape
from ts_stateful.language.kv.spans import Span, Table

pytest.importorskip("triton")
from ts_stateful.language.kernels.gpu.triton import TritonKernels

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}

WRITTEN = (1, 3)  # of the states of two layers: the keys and values of the second


class Case(NamedTuple):
    """A layer, and the tokens that its sessions have before and with the step."""

    shape: LayerShape
    group: int
    spans: Sequence[tuple[int, int]]  # start and number of new tokens
    window: int | None = None
    rule: Rule = Rule(None)
    dtype: torch.dtype = torch.float32


GROUPED = LayerShape(2, 64, 64)
RAGGED = ((0, 1), (63, 1), (64, 1), (130, 1), (5, 1))
CASES = {
    "one row": Case(GROUPED, 4, [(200, 1)]),
    "ragged rows": Case(GROUPED, 4, RAGGED),
    "heads of their own": Case(LayerShape(4, 32, 32), 1, RAGGED),
    "one key head": Case(LayerShape(1, 16, 16), 5, RAGGED),
    "more heads than a block": Case(LayerShape(1, 16, 16), 20, RAGGED),
    "dimensions that are no powers of two": Case(LayerShape(2, 80, 96), 3, RAGGED),
    "small dimensions": Case(LayerShape(2, 8, 4), 2, RAGGED),
    "window": Case(GROUPED, 2, RAGGED, window=33),
    "window of one": Case(GROUPED, 2, RAGGED, window=1),
    "scale": Case(GROUPED, 2, RAGGED, rule=Rule(0.31)),
    "soft cap": Case(GROUPED, 2, RAGGED, rule=Rule(1.0, softcap=3.0)),
    "sinks": Case(GROUPED, 2, RAGGED, rule=Rule(None, sinks=torch.tensor([3.0, -1.0, 0.5, 9.0]))),
    "all of it": Case(
        GROUPED, 1, RAGGED, 20, Rule(0.5, softcap=5.0, sinks=torch.tensor([1.0, 2.0]))
    ),
    "rows beside chunks": Case(GROUPED, 2, [(3, 5), (70, 1), (0, 9), (0, 1), (20, 2)], window=30),
    "chunks alone": Case(GROUPED, 2, [(3, 5), (0, 9)]),
    "half": Case(GROUPED, 4, RAGGED, dtype=torch.float16),
    "bfloat16": Case(GROUPED, 4, RAGGED, rule=Rule(None, softcap=20.0), dtype=torch.bfloat16),
}


def on_device(rule: Rule) -> Rule:
    return rule._replace(sinks=None if rule.sinks is None else rule.sinks.to(DEVICE))


def caches_of(case: Case) -> list[KVCache]:
    """Return sessions with random states, their lengths set."""
    layout = KVLayout((case.shape,) * 2, case.dtype)
    caches = []
    for start, _ in case.spans:
        kv = KVCache(layout, DEVICE)
        kv.reserve(start)
        for part in kv.states:
            part[:, :start].copy_(torch.randn(part[:, :start].shape))
        kv.length = start
        caches.append(kv)
    return caches


def step(
    kernels: Kernels | None, case: Case, caches: Sequence[KVCache], inputs: Sequence[Tensor]
) -> Tensor:
    """Return the attention of the last layer, on states that then hold the new tokens."""
    cache = StepCache(2)
    cache.kernels = kernels
    spans = [Span(kv, kv.length, count) for kv, (_, count) in zip(caches, case.spans, strict=True)]
    cache.begin(spans, flat=True)
    query, keys, values = inputs
    states, _ = cache.update(keys, values, 1)
    output: Tensor = states.attend(query, on_device(case.rule), case.window)
    return output


def inputs_of(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, keys and values `(1, heads, tokens, dim)`; in memory a token's heads are neighbors, as in models."""
    shape, num_tokens = case.shape, sum(count for _, count in case.spans)
    sizes = (
        (shape.heads * case.group, shape.key_dim),
        (shape.heads, shape.key_dim),
        (shape.heads, shape.value_dim),
    )
    query, keys, values = (
        torch.randn(1, num_tokens, *size).to(DEVICE, case.dtype).transpose(1, 2) for size in sizes
    )
    return query, keys, values


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_are_torchs_operators(name: str) -> None:
    """Outputs agree to rounding, and the states afterwards to the last bit."""
    case = CASES[name]
    torch.manual_seed(0)
    inputs = inputs_of(case)
    torch.manual_seed(1)
    before = caches_of(case)
    torch.manual_seed(1)
    caches = caches_of(case)
    expected = step(None, case, before, inputs)
    kernels = TritonKernels(KVLayout((case.shape,) * 2, case.dtype), 8)
    found = step(kernels, case, caches, inputs)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    bound = TOLERANCE[case.dtype]
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound)
    for kv, other, (start, count) in zip(caches, before, case.spans, strict=True):
        for number, (part, expected_part) in enumerate(zip(kv.states, other.states, strict=True)):
            stop = start + count if number in WRITTEN else start
            assert torch.equal(part[:, :stop], expected_part[:, :stop])


def test_states_stay_readable_when_they_have_grown_elsewhere() -> None:
    """After a session's memory has moved, the next table has the new address."""
    case = Case(GROUPED, 2, [(63, 1), (10, 1)])
    caches, inputs = caches_of(case), inputs_of(case)
    kernels = TritonKernels(KVLayout((case.shape,) * 2, case.dtype), 8)
    step(kernels, case, caches, inputs)
    place = caches[0].addresses.copy()
    caches[0].reserve(5000)
    assert not np.array_equal(place, caches[0].addresses)
    for kv in caches:
        kv.length += 1
    found = step(kernels, case, caches, inputs)
    torch.testing.assert_close(found, step(None, case, caches, inputs), rtol=2e-5, atol=2e-5)


def test_nothing_but_the_new_tokens_is_written() -> None:
    """Every other element of every state is what it was, the other layer's included."""
    case = CASES["rows beside chunks"]
    caches = caches_of(case)
    for kv, (start, count) in zip(caches, case.spans, strict=True):
        kv.reserve(start + count)
        for part in kv.states:
            part[:, start:].fill_(7.0)
    before = [[part.clone() for part in kv.states] for kv in caches]
    kernels = TritonKernels(KVLayout((case.shape,) * 2, case.dtype), 8)
    step(kernels, case, caches, inputs_of(case))
    for kv, parts, (start, count) in zip(caches, before, case.spans, strict=True):
        for number, (part, old) in enumerate(zip(kv.states, parts, strict=True)):
            if number in WRITTEN:
                assert not torch.equal(
                    part[:, start : start + count], old[:, start : start + count]
                )
                old[:, start : start + count] = part[:, start : start + count]
            assert torch.equal(part, old)


@pytest.mark.parametrize("num_splits", [1, 3, 4, 32])
def test_any_number_of_splits_gives_the_same(num_splits: int) -> None:
    """Sharing out a row's tokens changes nothing, also where there are more splits than tokens."""
    case = Case(LayerShape(1, 16, 16), 2, [(300, 1), (0, 1)], window=290)
    kernels = TritonKernels(KVLayout((case.shape,) * 2, case.dtype), 8)
    caches, inputs = caches_of(case), inputs_of(case)
    expected = step(None, case, caches, inputs)
    table = Table.of([Span(kv, kv.length, 1) for kv in caches]).on(DEVICE)
    found = kernels.attend(inputs[0][0], table, 1, case.rule, case.window, num_splits)
    torch.testing.assert_close(found[None], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_the_kernels_compile_for_gpus(tmp_path: Path, repository: Path) -> None:
    """This needs no GPU: they compile, and read states 16 bytes at a time, ahead of their use."""
    environ = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environ["PYTHONPATH"] = str(repository / "handlers")
    done = subprocess.run(
        [sys.executable, str(repository / "tests/support/compile_kernels.py"), str(tmp_path)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = {path.name: path.read_text() for path in tmp_path.glob("*.ptx")}
    assert len(made) == 14
    assert all(("griddepcontrol.wait" in ptx) == (".90." in name) for name, ptx in made.items())
    for capability in (80, 90):
        ptx = made[f"attend_kernel.{capability}.ptx"]
        assert "cp.async.cg.shared.global" in ptx  # always of 16 bytes
        assert "cp.async.ca.shared.global" not in ptx
        assert "mma.sync" in ptx
