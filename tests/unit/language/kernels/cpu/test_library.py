"""Functions of the compiled library that no other test calls by themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import torch

from tests.support.kernels import language_kernels
from ts_stateful.language.kernels.cpu.library import (
    LinearFacts,
    functions_for,
)

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)
# Threads of a process of their own, because they stay bound. Prints the processors of the caller and of its helpers.
SPREAD = """
import os
import torch
from ts_stateful.cpu_kernels.build import cache_folder, load_library
from ts_stateful.language.kernels.cpu.library import functions_for
library = functions_for(load_library(cache_folder(), "language"), torch.float32)
before = set(os.listdir("/proc/self/task"))
all_cpus = os.sched_getaffinity(0)
library.spread_threads(len(all_cpus))
helpers = [int(task) for task in set(os.listdir("/proc/self/task")) - before]
for cpu in sorted(all_cpus):
    os.sched_setaffinity(0, {cpu})
    library.spread_threads(len(all_cpus))
    places = [os.sched_getaffinity(helper) for helper in helpers]
    assert all(len(place) == 1 for place in places), places
    assert set.union(*places) == all_cpus - {cpu}, (places, cpu)
    os.sched_setaffinity(0, all_cpus)
library.spread_threads(len(all_cpus) - 1)
tasks = map(int, os.listdir("/proc/self/task"))
assert all(os.sched_getaffinity(task) == all_cpus for task in tasks)
"""


@pytest.mark.parametrize(
    ("dtype", "weights"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
    ],
)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 16, 17, 24, 25, 33, 39, 40, 41, 49, 63, 64])
def test_linear_layers_take_as_many_rows_as_a_step(
    rows: int, dtype: torch.dtype, weights: torch.dtype
) -> None:
    """Rows are taken in groups of several sizes; the last outputs fill no block. Products and sums are float32."""
    torch.manual_seed(rows)
    weight, bias = torch.randn(333, 224).to(weights), torch.randn(333).to(dtype)
    inputs = torch.randn(rows, 224).to(dtype)
    functions = functions_for(language_kernels(), dtype, weights)
    found = functions.multiply(LinearFacts.of(weight, bias), inputs)
    expected = inputs.double() @ weight.double().T + bias.double()
    rounding = 1e-5 if dtype is torch.float32 else 2**-8
    torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=3e-5)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor")
def test_helpers_leave_the_processor_of_their_caller() -> None:
    """With a thread for each processor, each helper has one to itself, wherever the caller is; the caller is not bound.

    With fewer threads none is: another engine may have the others.
    """
    done = subprocess.run(
        [sys.executable, "-c", SPREAD], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
