"""The threads that compute the passes of an engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_THREADS = """
import threading, torch
from pathlib import Path
from ts_stateful.config.control_groups import ControlGroups
from ts_stateful.process.engine.threads import set_threads

def number_in_a_thread():
    numbers = []
    thread = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return numbers[0]

before = torch.get_num_threads()
set_threads({count}, {parameters}, {ranks}, ControlGroups(Path("{root}"), Path("{root}/own")))
torch.ones(1_000_000).add(1)  # computed by all threads
print(before, torch.get_num_threads(), number_in_a_thread())
"""


@pytest.mark.parametrize(
    ("count", "parameters", "ranks", "quota", "of_passes"),
    [
        (3, 10**9, 1, "150000", 3),
        (0, 10, 1, "max", 1),
        (0, 10**9, 1, "max", None),
        (0, 10**9, 1000, "max", 1),
        (0, 10**9, 1, "150000", 1),
    ],
)
def test_only_the_thread_that_computes_passes_has_helpers(
    count: int, parameters: int, ranks: int, quota: str, of_passes: int | None, tmp_path: Path
) -> None:
    """Teams of two threads would be more than the cores, which ranks share, or more than a container has time for."""
    (tmp_path / "own").write_text("0::/")
    (tmp_path / "cpu.max").write_text(f"{quota} 100000")
    program = _THREADS.format(count=count, parameters=parameters, ranks=ranks, root=tmp_path)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, now, elsewhere = map(int, done.stdout.split())
    assert now == (of_passes or before)
    assert elsewhere == 1
