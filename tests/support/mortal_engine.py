"""An engine that dies of chosen requests: a real socket without a model."""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from ts_stateful.process.blocks import BlockReader
from ts_stateful.process.messages import EngineHello, Ping, Pong, WorkerHello, frame, receive
from ts_stateful.process.spec import EngineSpec
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.stats import Stats

__all__ = ["MortalEngine"]

_PAUSE_S = 0.1  # without a message, after which all requests are answered


class MortalEngine:
    """An engine at the socket of a spec. `kills` returns True for a request that kills it."""

    def __init__(self, spec: EngineSpec, kills: Callable[[Submit], bool]) -> None:
        self._kills = kills
        self.lives: list[list[str]] = []  # the requests of each life
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(spec.path("sock")))
        self._listener.listen()
        threading.Thread(target=self._live, daemon=True).start()

    def close(self) -> None:
        """End for good."""
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
                with contextlib.suppress(ConnectionError):  # the worker has disconnected first
                    self._serve(connection, process.pid)
                process.kill()
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # which ends the thread that reads

    def _serve(self, connection: socket.socket, pid: int) -> None:
        taken: list[str] = []
        messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(connection, messages), daemon=True).start()
        while True:
            try:
                message = messages.get(timeout=_PAUSE_S)
            except queue.Empty:
                while taken:  # no request that kills has come
                    connection.sendall(frame(Event(taken.pop(0), EventKind.LAST, b"{}")))
                continue
            if message is None:
                return
            if isinstance(message, WorkerHello):
                connection.sendall(frame(EngineHello(pid)))
            elif isinstance(message, Ping):
                connection.sendall(frame(Pong(Stats())))
            elif isinstance(message, Submit):
                self.lives[-1].append(message.request_id)
                taken.append(message.request_id)
                if self._kills(message):
                    return


def _read(connection: socket.socket, messages: queue.SimpleQueue[Any]) -> None:
    """Queue all messages, and None after the last."""
    blocks = BlockReader(connection)
    with contextlib.suppress(OSError):
        while (message := receive(blocks, at_engine=True)) is not None:
            messages.put(message)
    messages.put(None)
