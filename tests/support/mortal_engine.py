"""An engine that dies as it is told to: a real socket, nothing behind it."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from ts_stateful.process.messages import EngineHello, Ping, Pong, WorkerHello, receive, send
from ts_stateful.process.spec import EngineSpec
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.stats import Stats

__all__ = ["MortalEngine"]

_PAUSE_S = 0.1  # without a message, after which what was taken is answered


class MortalEngine:
    """Listens where the engine of a spec would. `kills` says whether a request is one that engines die of."""

    def __init__(self, spec: EngineSpec, kills: Callable[[Submit], bool]) -> None:
        self._kills = kills
        self.lives: list[list[str]] = []  # what each life was sent
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(spec.path("sock")))
        self._listener.listen()
        threading.Thread(target=self._live, daemon=True).start()

    def close(self) -> None:
        """Ends for good."""
        self._listener.close()

    def _live(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.lives.append([])
            with (
                connection,
                subprocess.Popen(
                    [sys.executable, "-c", "input()"], stdin=subprocess.PIPE
                ) as process,
            ):
                with contextlib.suppress(ConnectionError):  # who listened has gone first
                    self._serve(connection, process.pid)
                process.kill()

    def _serve(self, connection: socket.socket, pid: int) -> None:
        taken: list[str] = []
        while True:
            if not select.select([connection], [], [], _PAUSE_S)[0]:
                while taken:  # nothing more has come that it could have died of
                    send(connection, Event(taken.pop(0), EventKind.LAST, b"{}"))
                continue
            message: Any = receive(connection, at_engine=True)
            if message is None:
                return
            if isinstance(message, WorkerHello):
                send(connection, EngineHello(pid))
            elif isinstance(message, Ping):
                send(connection, Pong(Stats()))
            elif isinstance(message, Submit):
                self.lives[-1].append(message.request_id)
                taken.append(message.request_id)
                if self._kills(message):
                    return
