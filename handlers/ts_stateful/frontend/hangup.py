"""The exit of a worker whose connection TorchServe has closed."""

from __future__ import annotations

import os
import select
import socket
import threading

__all__ = ["HangUp"]


class HangUp:
    """A thread that ends this process when TorchServe closes the connection.

    Without it the worker of the async profile lives on for ever, and that of the sequence profile until its batch has something
    to send. Meanwhile it looks as if the model had a worker.
    """

    def __init__(self) -> None:
        self._is_watching = False

    def watch(self, connection: object) -> None:
        """Watch the connection from the first call on. Anything but a socket is ignored."""
        if not self._is_watching and isinstance(connection, socket.socket):
            self._is_watching = True
            threading.Thread(target=_exit_at_end, args=(connection,), daemon=True).start()


def _exit_at_end(connection: socket.socket) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll()
    os._exit(1)  # other threads would keep the process
