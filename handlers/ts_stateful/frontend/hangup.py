"""The exit of a worker whose connection TorchServe has closed."""

from __future__ import annotations

import functools
import os
import select
import socket
import threading

__all__ = ["exit_at_hangup"]


@functools.cache
def exit_at_hangup(connection: object) -> None:
    """End this process when TorchServe closes the connection. Anything but a socket is ignored.

    Else the worker of the async profile would live on for ever, and that of the sequence profile until its batch has something
    to send. Meanwhile it would look as if the model had a worker.
    """
    if isinstance(connection, socket.socket):
        threading.Thread(target=_exit_at_end, args=(connection,), daemon=True).start()


def _exit_at_end(connection: socket.socket) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll()
    os._exit(1)  # other threads would keep the process
