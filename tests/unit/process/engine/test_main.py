"""Connections to an engine."""

from __future__ import annotations

import errno
import socket
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
