"""Connections to an engine."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ts_stateful.process.engine import main as engine_main
from ts_stateful.process.engine.main import EngineProcess


class Over(BaseException):
    """The end of a loop that otherwise runs as long as its process."""


class Listener:
    """A socket with too many open files at first, and then a connection."""

    def __init__(self, connection: socket.socket) -> None:
        failure = OSError(errno.EMFILE, "Too many open files")
        self._outcomes: Iterator[Any] = iter([failure, connection])

    def accept(self) -> tuple[socket.socket, str]:
        """Accept as a socket does."""
        outcome = next(self._outcomes, Over())
        if isinstance(outcome, BaseException):
            raise outcome
        assert isinstance(outcome, socket.socket)
        return outcome, "address"


def test_the_engine_accepts_again_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next worker gets an answer."""
    opened: list[Any] = []
    process: Any = object.__new__(EngineProcess)
    process._open_channel = opened.append
    monkeypatch.setattr(engine_main, "_RETRY_S", 0.0)
    connection, peer = socket.socketpair()
    with connection, peer:
        with pytest.raises(Over):
            process._accept(Listener(connection))
        assert opened == [connection]


_THREADS = """
import threading, torch
from ts_stateful.process.engine.main import _set_threads

def number_in_a_thread():
    numbers = []
    thread = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return numbers[0]

before = torch.get_num_threads()
_set_threads({count}, {parameters})
torch.ones(1_000_000).add(1)  # computed by all threads
print(before, torch.get_num_threads(), number_in_a_thread())
"""


@pytest.mark.parametrize(
    ("count", "parameters", "of_passes"), [(3, 10**9, 3), (0, 10, 1), (0, 10**9, None)]
)
def test_only_the_thread_that_computes_passes_has_helpers(
    count: int, parameters: int, of_passes: int | None
) -> None:
    """Teams of two threads would be more than the cores."""
    program = _THREADS.format(count=count, parameters=parameters)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, now, elsewhere = map(int, done.stdout.split())
    assert now == (of_passes or before)
    assert elsewhere == 1
