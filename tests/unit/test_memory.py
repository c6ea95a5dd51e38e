"""Memory that the allocator keeps between passes, and gives back."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from ts_stateful.memory import without_collections

_PROGRAM = """
import resource, torch
from ts_stateful.memory import give_memory_back, keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use():
    before = faults()
    torch.ones(1_000_000)  # 4 MB, which are freed again
    return faults() - before

keep_freed_memory()
kept = min(use() for _ in range(30))  # the first ones find memory in small pieces
give_memory_back()
print(kept, use())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_freed_memory_is_kept_until_it_is_given_back() -> None:
    """Another tensor of the same size takes no new pages; after the memory was given back, it takes all of them."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True
    )
    kept, taken = map(int, done.stdout.split())
    assert kept < 100 < 900 < taken


def test_what_a_block_makes_is_never_looked_at() -> None:
    """Nothing is collected in it, and afterwards only what is made later."""
    before = gc.get_freeze_count()
    try:
        with without_collections():
            assert not gc.isenabled()
            made: list[list[int]] = [[] for _ in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(made)
    finally:
        gc.unfreeze()
