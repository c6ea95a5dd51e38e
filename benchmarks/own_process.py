"""An object in a process of its own: what is measured without a server.

Owns the process. Knows nothing of what is measured.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["OwnProcess"]


class OwnProcess:
    """What `make(*arguments)` makes, in a process of its own; a context manager. Idle while servers are measured."""

    def __init__(self, make: Callable[..., object], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def measure(self, name: str, *arguments: object) -> Any:
        """What the object's method `name` returns."""
        self._pipe.send((name, arguments))
        return self._pipe.recv()

    def __enter__(self) -> OwnProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()


def _serve(pipe: Connection, make: Callable[..., object], arguments: tuple[object, ...]) -> None:
    served = make(*arguments)
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(served, name)(*arguments))
