"""The threads that compute the passes of an engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

_THREADS = """
import threading, torch
from ts_stateful.process.engine.threads import set_threads

def number_in_a_thread():
    numbers = []
    thread = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return numbers[0]

before = torch.get_num_threads()
set_threads({count}, {parameters}, {ranks})
torch.ones(1_000_000).add(1)  # computed by all threads
print(before, torch.get_num_threads(), number_in_a_thread())
"""


@pytest.mark.parametrize(
    ("count", "parameters", "ranks", "of_passes"),
    [(3, 10**9, 1, 3), (0, 10, 1, 1), (0, 10**9, 1, None), (0, 10**9, 1000, 1)],
)
def test_only_the_thread_that_computes_passes_has_helpers(
    count: int, parameters: int, ranks: int, of_passes: int | None
) -> None:
    """Teams of two threads would be more than the cores, which ranks share."""
    program = _THREADS.format(count=count, parameters=parameters, ranks=ranks)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, now, elsewhere = map(int, done.stdout.split())
    assert now == (of_passes or before)
    assert elsewhere == 1
