"""An object in its own process, measured without a server."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["OwnProcess"]


class OwnProcess:
    """An instance of `kind` in its own process; a context manager. Idle while servers are measured."""

    def __init__(self, kind: type[object], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, kind, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def measure(self, name: str, *arguments: object) -> Any:
        """Return the result of the object's method `name`."""
        self._pipe.send((name, arguments))
        return self._pipe.recv()

    def __enter__(self) -> OwnProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()


def _serve(pipe: Connection, kind: type[object], arguments: tuple[object, ...]) -> None:
    served = kind(*arguments)
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(served, name)(*arguments))
